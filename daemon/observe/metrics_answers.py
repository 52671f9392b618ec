"""`AnswerTally`: lets the metrics count an answer of an explorer once it is certain that the explorer was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.observe.metrics_void import VoidRecords
from rftd.streams.events.task import EvalLeased, TaskLeased
from rftd.streams.log.newest import Newest
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import source_of

_LEASES: Final = 16_384
"""The newest leases, whose holders are remembered: more than are under way at once."""
_EXPLORERS: Final = 4096
"""The explorers that are remembered: of a lease that is older than all this, any of them may be the holder."""
_UNDECIDED: Final = 4096
"""The most answers that wait until a lease of their writer is seen."""


class LeaseAnswer(NamedTuple):
    """One record that answers a lease."""

    experiment: UUID
    lease: UUID
    source: str
    partition: Partition
    offset: int


class AnswerTally:
    """The holders of leases, as far as they were seen, and the answers of writers that were not seen yet."""

    def __init__(self, void: VoidRecords) -> None:
        self._void = void
        # By the id as a number: a UUID's hash is computed in Python, an int's in C.
        self._holders: Newest[int, str] = Newest(_LEASES)
        self._explorers: Newest[str, str] = Newest(_EXPLORERS)
        """The explorers that were seen, each by its source: one text for all its leases."""
        self._undecided: list[tuple[LeaseAnswer, Callable[[], None]]] = []

    def leased(self, event: TaskLeased | EvalLeased) -> None:
        """Takes in a lease."""
        source = source_of("explorer", event.worker)
        holder = self._explorers.get(source)
        if holder is None:
            holder = source
            self._explorers.put(source, source)
        self._holders.put(event.lease.int, holder)

    def take(self, answer: LeaseAnswer, count: Callable[[], None]) -> None:
        """Calls `count` for an answer of the holder of its lease; a stranger's is counted as a foreign record."""
        if (mine := self._is_holders(answer)) is None:
            # A daemon that has begun in the middle has not seen the leases before; an explorer has a next one soon.
            self._undecided.append((answer, count))
        elif mine:
            count()
        else:
            self._void.note_foreign(answer.experiment, answer.partition.stream, _described(answer))

    def settle(self) -> None:
        """Looks once more at answers of writers that were not known."""
        waiting = self._undecided[-_UNDECIDED:]
        self._undecided = []
        for answer, count in waiting:
            self.take(answer, count)

    def _is_holders(self, answer: LeaseAnswer) -> bool | None:
        """True if the holder of its lease wrote it; None if nothing is known of either."""
        holder = self._holders.get(answer.lease.int)
        if holder is not None:
            return holder == answer.source
        return True if answer.source in self._explorers else None


def _described(answer: LeaseAnswer) -> str:
    return f"an answer of {answer.source!r} at {answer.partition}@{answer.offset} to a lease that it never held"
