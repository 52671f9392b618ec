"""NeMo-RL's weight_fifo (algorithms.md part 3): the oldest weight version within the bound is drained first.

Nothing waits until it is too old while younger experiences are trained. Admission and sweep are those of `hard_bound`.
"""

from __future__ import annotations

from rftd.workers.control.policies.buffer_index import Order, ReadyGroup
from rftd.workers.control.policies.hard_bound import HardBound


class WeightFifo(HardBound):
    """`HardBound`, with batches in the order of weight versions."""

    def order(self, ready: ReadyGroup) -> Order:
        return (ready.oldest_version, *super().order(ready))
