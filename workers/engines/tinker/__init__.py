"""Tinker: a service that trains adapters of its own models, and generates with them. No arrow leads to any engine.

rollout/  the rollout engine: weights lie there
service   `TinkerService`: the seam: what our engines ask of the service, in plain data
answers   what came back, held against what was asked
access    the key, from the environment alone; the service's address; how its errors read
watch     whether the service answers, while a call is under way
sdk       the seam over the `tinker` package, which only this file imports
trainer/  the trainer engine: weights and optimizer lie there
"""
