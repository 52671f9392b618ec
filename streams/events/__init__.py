"""The event types, one file for each noun.

registry     the declaration of a type: its name, versions and upcasters
catalogue    every type by name, for readers of a log
experiment   experiment.*, stage.*, fence
task         tasks.offered, task.leased, eval.leased, task.expired, group.closed
experience   experience.produced, rollout.failed, eval.scored
batch        batch.planned, batch.abandoned, experience.retired (all reasons), experience.given_up
step         step.completed, eval.completed
weights      weights.published, weights.retired, weights.activated; weights.requested, weights.answered, weights.overdue
checkpoint   checkpoint.committed, checkpoint.deleted
sweep        sweep.submitted, sweep.refused, sweep.halved, sweep.cancelled
worker       worker.started, worker.stopped, worker.lost, worker.heartbeat, record.*
"""
