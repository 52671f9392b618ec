"""The order of the dataset: a batch takes its groups as they were given out, not as they came back (rule 14).

With `sync_style: fixed` and offset 0 exactly the groups of one batch are under way, and none of the next; so which
experiences form batch n, and in which order, does not depend on how fast any of them was.
"""

from __future__ import annotations

from rftd.workers.control.policies.buffer_index import Order, ReadyGroup
from rftd.workers.control.policies.hard_bound import HardBound


class InOrder(HardBound):
    """`HardBound`, with batches in the order of group and rollout."""

    def order(self, ready: ReadyGroup) -> Order:
        return (ready.sequence, ready.offset)
