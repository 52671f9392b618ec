"""`Letters`: dead letters, that is records set aside by a reader, and the verdict on each; a fold of
`rftd.deadletters`.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from rftd.streams.events import worker
from rftd.streams.folds.commands import Commands
from rftd.streams.log import topics
from rftd.streams.log.effective import ruling_if_ours
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

HOME = Partition(topics.DEADLETTERS, 0)
"""Partition of all dead letters."""


class RecordPlace(NamedTuple):
    """Position of the record behind a dead letter, or of the group.closed of a failed task."""

    stream: str
    """Stream of the partition."""
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record in the partition."""

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}@{self.offset}"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """The first dead letter about a record: position, consumer, code and reason."""

    place: RecordPlace
    """Position of the record."""
    consumer: str
    """Name of the reader that could not use the record."""
    code: str
    """Error code of the reader that could not use the record."""
    reason: str
    """Text of the error."""
    unreadable: bool
    """True if no reader of the release could decode the record."""
    reported_ns: int
    """Time of the report, in nanoseconds since 1970."""


class LetterDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision about a dead letter: a retry or a drop, with the reason."""

    retried: bool
    """False for a drop."""
    by: str
    """Name of the person."""
    reason: str
    """Reason given by the person."""
    event: UUID | None
    """The event taking effect instead of the record."""
    decided_ns: int
    """Time of the decision, in nanoseconds since 1970."""


class Letters:
    """Dead letters and verdicts, by position. A retry overrides a drop; of equal verdicts, the first counts."""

    def __init__(self) -> None:
        self.letters: dict[RecordPlace, Letter] = {}
        """First report about each record."""
        self.verdicts: dict[RecordPlace, LetterDecision] = {}
        """Counting verdict on each letter."""
        self.commands = Commands()
        """Uses of request keys for dropping letters."""
        self.next_offset = 0
        """The next offset of the stream to read."""
        self._fences = FenceView()
        """Owner of each role, to ignore voided records."""

    async def catch_up(self, log: EventLog) -> None:
        """Reads everything up to the stream's present end."""
        while records := await log.read(HOME, self.next_offset):
            for record in records:
                ruling = ruling_if_ours(record, self._fences)
                if ruling is not None:
                    self.commands.take(ruling)
                    if ruling.effective:
                        self.apply(ruling.decoded.event, ruling.decoded.head.time_ns)
                self.next_offset = record.offset + 1

    def apply(self, event: object, time_ns: int) -> None:
        """Folds one event of the stream; events of other types change nothing."""
        match event:
            case worker.RecordDeadLettered():
                position = RecordPlace(event.stream, event.partition, event.offset)
                self.letters.setdefault(
                    position,
                    Letter(
                        place=position,
                        consumer=event.consumer,
                        code=event.code,
                        reason=event.reason,
                        unreadable=event.unreadable,
                        reported_ns=time_ns,
                    ),
                )
            case worker.RecordRetried():
                position = RecordPlace(event.stream, event.partition, event.offset)
                # A retry has already taken effect, whatever was decided meanwhile; a drop only changes lists.
                decision = self.verdicts.get(position)
                if decision is None or not decision.retried:
                    self.verdicts[position] = LetterDecision(
                        retried=True, by=event.by, reason="", event=event.event, decided_ns=time_ns
                    )
            case worker.RecordDropped():
                position = RecordPlace(event.stream, event.partition, event.offset)
                dropped = LetterDecision(
                    retried=False, by=event.by, reason=event.reason, event=None, decided_ns=time_ns
                )
                self.verdicts.setdefault(position, dropped)
            case _:
                pass
