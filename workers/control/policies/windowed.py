"""NeMo-RL's window (algorithms.md part 3): no gate but the buffer's; what is older than the window is retired.

A batch takes experiences of the versions v - bound to v, as groups closed or the freshest first. Groups under way that
began before the window are given up, for nothing of them could be trained.
"""

from __future__ import annotations

import msgspec

from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import Order, ReadyGroup
from rftd.workers.control.policies.hard_bound import flown_too_long
from rftd.workers.control.policies.paced import Paced, read_args
from rftd.workers.control.policies.policy import Flight, PolicyView


class WindowedArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `windowed`."""

    freshest_first: bool = False
    abort_inflight: bool = True


class Windowed(Paced):
    """Everything within the window of versions, and nothing else."""

    keeps_bound = True

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._args = read_args(spec, WindowedArgs)
        self._aborts = spec.bounded and self._args.abort_inflight

    def most_supply(self, view: PolicyView) -> int:
        # NeMo-RL's required_buffer_capacity: two batches for each version of the window.
        return view.planned_experiences + 2 * (self.bound_versions + 1) * view.batch_size

    def order(self, ready: ReadyGroup) -> Order:
        return (-ready.oldest_version, *super().order(ready)) if self._args.freshest_first else super().order(ready)

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        return flown_too_long(flights, self.oldest_allowed(view)) if self._aborts else []
