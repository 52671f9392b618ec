"""Tinker: a remote service for training adapters of its models and generating with them. No engine imports another.

rollout/  the rollout engine, with weights at the service
service   `TinkerService`: the interface to the service, in plain data
answers   checks of the service's answers against the requests
access    the key, from the environment alone; the service's address; the errors
watch     detection of an unresponsive service during a call
sdk       the implementation by the `tinker` package, which only this file imports
trainer/  the trainer engine, with weights and optimizer at the service
"""
