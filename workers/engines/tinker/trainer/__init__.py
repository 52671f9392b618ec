"""The Tinker trainer engine: weights and optimizer at the service, objectives of this project.

In reading order:

engine     `TinkerTrainerEngine`: runs at the service: opened, stepped, saved and continued
definition the engine for the registry
arguments  its `engine_args`, and the unsupported parts of objectives
learner    log-probabilities from the service, and gradients back to the service
own_losses objectives equal to the service's own losses
"""
