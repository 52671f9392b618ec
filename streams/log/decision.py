"""A decision: an event, and the partition that it goes to."""

from __future__ import annotations

from typing import NamedTuple

from rftd.ops import limits
from rftd.streams.events.registry import Event
from rftd.streams.log.topics import TASKS, Partition


class Decision(NamedTuple):
    """An event that a role wants to append; without a partition it goes where its experiment's events go."""

    event: Event
    partition: Partition | None = None


def slot_partition(slot: int) -> Partition:
    """The partition of `rftd.tasks` that the worker in `slot` reads (rule 4)."""
    # A forged record may name any number. It is taken for a slot that exists, whose worker has no lease by that record.
    return Partition(TASKS, slot % limits.WORKER_SLOTS)
