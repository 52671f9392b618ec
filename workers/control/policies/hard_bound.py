"""Admission by capacity (AReaL, algorithms.md part 3) and a sweep at consumption (prime-rl): a hard bound.

A group may start while what is trained, waiting and under way stays within
    (bound + version + 1) * batch size   and   (inflight batches + steps planned) * batch size
experiences. The version is the one that it would begin with, so that all that begin with it find room in the batches
that may hold them: weights arrive after the step that made them. What fails or is retired leaves the count, so nothing
is lost on recovery. Batch n takes the oldest closed groups first, and only experiences whose staleness
(n - 1) - oldest version is within the bound.
"""

from __future__ import annotations

import msgspec

from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.paced import Paced, read_args
from rftd.workers.control.policies.policy import Flight, PolicyView


class HardBoundArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `hard_bound`, `in_order` and `weight_fifo`."""

    abort_inflight: bool = False
    """Give up groups under way that began with weights too old for any later batch."""
    wait: bool = False
    """Form no batch while a group is under way that would be too old for the one after it (verl's `wait`).

    Then nothing is dropped for having taken long, and the lengths that are trained are those that were generated; the
    price is that training waits for the longest. With `weight_fifo`, so that what came at last goes first.
    """


class HardBound(Paced):
    """No trained experience is staler than `max_staleness_versions`."""

    keeps_bound = True

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        args = read_args(spec, HardBoundArgs)
        self._aborts = spec.bounded and args.abort_inflight
        self._waits = spec.bounded and args.wait

    def most_supply(self, view: PolicyView) -> int:
        starting = view.starting_version
        begins_with = starting if self.sweeps and starting is not None else view.version
        by_bound = (self.bound_versions + begins_with - view.first_version + 1) * view.batch_size
        return min(by_bound, self.inflight_supply(view))

    def waits_for(self, view: PolicyView) -> int | None:
        return self.oldest_allowed(view) if self._waits else None

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        return flown_too_long(flights, self.oldest_allowed(view)) if self._aborts else []


def flown_too_long(flights: list[Flight], oldest_version: int) -> list[Flight]:
    """Those that began with older weights."""
    return [flight for flight in flights if flight.oldest_version < oldest_version]
