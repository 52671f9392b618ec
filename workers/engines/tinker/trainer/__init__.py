"""The Tinker trainer engine: weights and optimizer lie at the service, the objective is ours.

In reading order:

engine     `TinkerTrainerEngine`: runs at the service, opened, stepped, saved and gone on from
definition the engine as the registry has it
arguments  its `engine_args`, and what it lacks
learner    log-probabilities from the service, and gradients by them back to it
own_losses which objectives the service computes by itself, exactly as ours
"""
