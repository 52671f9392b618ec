"""The projections, one file for each noun; adding one is a file and a line here.

projection   what a projection is
experiments  the life of experiments and stages
tasks        leases and groups
experiences  what rollouts left, and what was retired
batches      what was planned
steps        what was trained and evaluated
weights      what was published and checkpointed
workers      who worked; dead letters
fences       who owns which role where
once         which events must not count twice
"""

from typing import Final

from rftd.storage.pairs import Pair
from rftd.storage.projections import batches, experiences, experiments, fences, once, steps, tasks, weights, workers
from rftd.storage.projections.projection import Projection

PROJECTIONS: Final[tuple[Projection, ...]] = tuple(
    module.PROJECTION for module in (experiments, tasks, experiences, batches, steps, weights, workers, fences, once)
)

PAIRS: Final = (Pair(experiences.PRODUCED, tasks.MEMBER),)
"""A group is closed when the last of it was produced."""

__all__ = ["PAIRS", "PROJECTIONS", "Projection"]
