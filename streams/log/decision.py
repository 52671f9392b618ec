"""A decision: an event and its destination partition."""

from __future__ import annotations

from typing import NamedTuple

from rftd.ops import limits
from rftd.streams.events.registry import Event
from rftd.streams.log.topics import TASKS, Partition


class Decision(NamedTuple):
    """An event decided by a role and not appended yet; without a `partition`, it goes to the experiment's own."""

    event: Event
    """The event."""
    partition: Partition | None = None
    """The partition; None for the experiment's own."""


def slot_partition(slot: int) -> Partition:
    """Returns the partition of `rftd.tasks` read by the worker in `slot`."""
    # A forged record may name any number: it maps to an existing slot, whose worker has no lease by that record.
    return Partition(TASKS, slot % limits.WORKER_SLOTS)
