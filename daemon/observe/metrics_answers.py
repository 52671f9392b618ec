"""`AnswerTally`: counts explorers' answers in the metrics, once the writer is known to be the lease's holder."""

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
"""Number of newest leases with a remembered holder: more than are ever unfinished at a time."""
_EXPLORERS: Final = 4096
"""Number of remembered explorers: the holder of a lease older than all remembered ones may be any of them."""
_UNDECIDED: Final = 4096
"""Maximum number of answers waiting until their lease is read."""


class LeaseAnswer(NamedTuple):
    """One record answering a lease: an experience, a failed rollout or scores, with its writer and log position."""

    experiment: UUID
    """Id of the experiment."""
    lease: UUID
    """Id of the lease."""
    source: str
    """Name of the record's writer."""
    partition: Partition
    """Partition of the record."""
    offset: int
    """Offset of the record."""


class AnswerTally:
    """Holders of leases, and answers waiting until their lease is read."""

    def __init__(self, void: VoidRecords) -> None:
        """Answers of strangers are counted by `void`."""
        self._void = void
        # By the id as a number: a UUID's hash is computed in Python, an int's in C.
        self._holders: Newest[int, str] = Newest(_LEASES)
        """Source of the explorer holding each lease, by the lease's id as a number."""
        self._explorers: Newest[str, str] = Newest(_EXPLORERS)
        """Known explorers by source: one shared string for all leases of an explorer."""
        self._undecided: list[tuple[LeaseAnswer, Callable[[], None]]] = []
        """Answers whose lease was not read yet, with the function counting each."""

    def leased(self, event: TaskLeased | EvalLeased) -> None:
        """Records the explorer holding a new lease, so that later answers to the lease can be attributed."""
        source = source_of("explorer", event.worker)
        holder = self._explorers.get(source)
        if holder is None:
            holder = source
            self._explorers.put(source, source)
        self._holders.put(event.lease.int, holder)

    def take(self, answer: LeaseAnswer, count: Callable[[], None]) -> None:
        """Calls `count` if the lease's holder wrote the answer; counts a stranger's answer as a foreign record."""
        if (mine := self._is_holders(answer)) is None:
            # A daemon beginning in the middle has not seen earlier leases; an explorer gets its next one soon.
            self._undecided.append((answer, count))
        elif mine:
            count()
        else:
            self._void.note_foreign(answer.experiment, answer.partition.stream, _foreign_answer_words(answer))

    def settle(self) -> None:
        """Checks waiting answers again, and drops the oldest above `_UNDECIDED`; to be called after each batch of
        records.
        """
        waiting = self._undecided[-_UNDECIDED:]
        self._undecided = []
        for answer, count in waiting:
            self.take(answer, count)

    def _is_holders(self, answer: LeaseAnswer) -> bool | None:
        """True if the lease's holder wrote the answer; None if neither lease nor writer is known."""
        holder = self._holders.get(answer.lease.int)
        if holder is not None:
            return holder == answer.source
        return True if answer.source in self._explorers else None


def _foreign_answer_words(answer: LeaseAnswer) -> str:
    """Returns writer and position of an answer to a lease of another explorer."""
    return f"an answer of {answer.source!r} at {answer.partition}@{answer.offset} to a lease that it never had"
