"""Admission by capacity (AReaL, algorithms.md part 3) and a sweep at consumption (prime-rl): a hard bound.

A group may start while what is trained, waiting and under way stays within
    (bound + steps done + 1) * batch size   and   (inflight batches + steps planned) * batch size
experiences; what fails or is retired leaves the count, so nothing is lost on recovery. Batch n takes the oldest closed
groups first, and only experiences whose staleness (n - 1) - oldest version is within the bound.
"""

from __future__ import annotations

import msgspec

from rftd.streams.spec import PolicySpec
from rftd.workers.policies.paced import Paced, read_args
from rftd.workers.policies.policy import Flight, PolicyView


class HardBoundArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `hard_bound`, `in_order` and `weight_fifo`."""

    abort_inflight: bool = False
    """Give up groups under way that began with weights too old for any later batch."""


class HardBound(Paced):
    """No trained experience is staler than `max_staleness_versions`."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._aborts = spec.bounded and read_args(spec, HardBoundArgs).abort_inflight

    def most_supply(self, view: PolicyView) -> int:
        by_bound = (self.bound_versions + view.steps_done + 1) * view.batch_size
        return min(by_bound, self.inflight_supply(view))

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        return flown_too_long(flights, self.oldest_allowed(view)) if self._aborts else []


def flown_too_long(flights: list[Flight], oldest_version: int) -> list[Flight]:
    """Those that began with older weights."""
    return [flight for flight in flights if flight.oldest_version < oldest_version]
