"""The event types, one file for each noun; importing this package registers them all.

registry     how a type is declared, versioned and upcast
experiment   experiment.*, stage.*, fence
task         tasks.offered, task.leased, eval.leased, task.expired, group.closed
experience   experience.produced, rollout.failed, eval.scored
batch        batch.planned, batch.abandoned, experience.retired, experience.given_up
step         step.completed, eval.completed
signal       signal.lost, signal.regained
weights      weights.published, weights.retired, weights.activated; weights.requested, weights.answered, weights.overdue
checkpoint   checkpoint.committed, checkpoint.deleted
worker       worker.started, worker.stopped, worker.lost, worker.heartbeat, record.*
"""

from rftd.streams.events import batch, checkpoint, experience, experiment, signal, step, task, weights, worker

__all__ = ["batch", "checkpoint", "experience", "experiment", "signal", "step", "task", "weights", "worker"]
