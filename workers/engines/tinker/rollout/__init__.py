"""The Tinker rollout engine: the service generates, with named weights at the service.

definition the engine for the registry
arguments  its arguments, and the settings unsupported by the service
engine     `TinkerRolloutEngine`
"""
