"""The Tinker rollout engine: the service generates, with weights that lie there under a name.

definition the engine as the registry has it
arguments  its arguments, and what of a request the service cannot do
engine     `TinkerRolloutEngine`
"""
