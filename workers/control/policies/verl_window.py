"""verl's fully asynchronous window (docs/advance/fully_async.md, algorithms.md part 3).

Between two synchronisations at most (1 + threshold) * sync steps * batch experiences are dispatched, those counted that
were under way or queued at the last one. Threshold 0 is a synchronous window, 1 about one step off. With a `queue` the
oldest are dropped when it is full, as verl's does; each drop is an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

import msgspec

from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.paced import Paced, read_args
from rftd.workers.control.policies.policy import PolicyView, Retirement


class VerlWindowArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `verl_window`."""

    staleness_threshold: float = 0.5
    trigger_parameter_sync_step: int = 1
    """Steps between two synchronisations: sync_interval, unless it is set."""


class VerlWindow(Paced):
    """Admission by what was dispatched since the last synchronisation."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._args = read_args(spec, VerlWindowArgs)
        self._queue = spec.capacity if spec.evict_when_full else 0

    def most_supply(self, view: PolicyView) -> int:
        synced_steps = view.published_version - view.first_version
        window = (1 + self._args.staleness_threshold) * self._args.trigger_parameter_sync_step * view.batch_size
        return synced_steps * view.batch_size + int(window)

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterator[Retirement]:
        if self._queue and (more := len(buffer) - self._queue) > 0:
            yield Retirement("capacity", nsmallest(more, buffer.in_order(), key=_age))


def _age(entry: BufferEntry) -> tuple[int, int]:
    return (entry.group.offset, entry.index)
