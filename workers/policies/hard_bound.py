"""Admission by capacity (AReaL, algorithms.md part 3) and a sweep at consumption (prime-rl): a hard bound.

A group may start while what is trained, waiting and under way stays within
    (bound + steps done + 1) * batch size   and   (inflight batches + steps planned) * batch size
experiences; what fails or is retired leaves the count, so nothing is lost on recovery. Batch n takes the oldest closed
groups first, and only experiences whose staleness (n - 1) - oldest version is within the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rftd.streams.spec import PolicySpec
from rftd.workers.policies.paced import Paced
from rftd.workers.policies.policy import Flight, PolicyView


class HardBound(Paced):
    """No trained experience is staler than `max_staleness_versions`."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._aborts = bool(spec.args.get("abort_inflight", False))

    def most_supply(self, view: PolicyView) -> int:
        by_bound = (self.bound_versions + view.steps_done + 1) * view.batch_size
        return min(by_bound, self.inflight_supply(view))

    def abort_inflight(self, view: PolicyView, flights: Sequence[Flight]) -> Sequence[UUID]:
        if not (self._aborts and self._sweeps):
            return ()
        oldest = self.oldest_allowed(view)
        return [flight.group for flight in flights if flight.oldest_version < oldest]
