"""The projections, one file for each noun; adding one is a file and a line here.

projection   `Projection`: a name, a version, tables, handlers
experiments  the life of experiments and stages, transitions
tasks        leases and groups
experiences  experiences and failed rollouts; retirements
batches      planned batches and their items
steps        steps, generations, evaluations
weights      published weights, checkpoints
workers      workers; dead letters
progress     the owners of roles; events that must not count twice
"""

from typing import Final

from rftd.storage.projector.projections import (
    batches,
    experiences,
    experiments,
    progress,
    steps,
    tasks,
    weights,
    workers,
)
from rftd.storage.projector.projections.projection import Projection

PROJECTIONS: Final[tuple[Projection, ...]] = (
    *(module.PROJECTION for module in (experiments, tasks, experiences, batches, steps, weights, workers)),
    progress.FENCES,
    progress.ONCE,
)
"""Every projection, in the order of folding."""

__all__ = ["PROJECTIONS", "Projection"]
