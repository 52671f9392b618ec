"""Foreign records, skipped alike by every reader, and the box of dead letters with a pointer to each foreign record.

A record is foreign if the envelope is unreadable, if the type is unknown, if the partition does not match type or
experiment, or if the payload is unreadable or out of bounds (`rftd.streams.log.bounds`). Foreign records have no effect
and stop no reader. A record of a known type in a newer version stops all readers: skipping the record would lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.errors import CodecError
from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.catalogue import UnknownVersionError, definition_named
from rftd.streams.events.worker import RecordDeadLettered
from rftd.streams.log import topics
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer, decode_head, decode_with, place
from rftd.streams.log.envelope import Decoded, Head, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, may_hold, partition_of

_HOME: Final = Partition(topics.DEADLETTERS, 0)
"""The partition of all dead letters."""
_EXPERIMENT_STREAMS: Final = {*topics.KEYED, topics.TASKS, topics.EXPERIENCES}
"""The streams in which every record has to name an experiment."""


def decode_ours(record: Record) -> Decoded:
    """Decodes the event of a record. Raises CodecError, with the reason, for foreign ones, and UnknownVersionError."""
    return decode_routed(decode_head(record), record)


def decode_routed(head: Head, record: Record) -> Decoded:
    """Decodes the event of a record from attributes decoded earlier. Raises CodecError, as `decode_ours` does."""
    check_route(head, record)
    return decode_with(head, record)


def understood(record: Record) -> Decoded | None:
    """Decodes the event of a record; None for a foreign record. Raises UnknownVersionError."""
    head = head_of(record)
    return None if head is None else understood_with(head, record)


def understood_with(head: Head, record: Record) -> Decoded | None:
    """Decodes the event of a record from attributes decoded earlier; None and errors as of `understood`."""
    try:
        return decode_routed(head, record)
    except UnknownVersionError:
        raise
    except CodecError:
        return None


def head_of(record: Record) -> Head | None:
    """Decodes the attributes, for routing; None for an unreadable envelope."""
    try:
        return decode_head(record)
    except CodecError:
        return None


def check_route(head: Head, record: Record) -> None:
    """Raises CodecError for an unknown event type, or a record in a partition where its type or experiment does not
    belong.
    """
    # Folds rely on the order of one partition: a copy of an event in another partition would be folded at any time.
    definition = definition_named(head.type)
    stream = record.partition.stream
    if not topics.TOPICS[stream].events:
        raise CodecError(f"{head.type} in the topic of requests, where no event counts", where=place(record))
    if definition.anywhere:
        return
    if definition.stream != stream:
        raise CodecError(f"{head.type} belongs in {definition.stream}", where=place(record))
    if head.experiment is None:
        if stream in _EXPERIMENT_STREAMS:
            raise CodecError(f"{head.type} of no experiment", where=place(record))
    # Keyed streams alone: tasks and experiences lie by slot and by group, in any experiment's partition.
    elif not may_hold(record.partition, head.experiment):
        home = partition_of(stream, head.experiment)
        raise CodecError(f"{head.type} of an experiment that belongs to {home}", where=place(record))


def letter_id(letter: RecordDeadLettered) -> UUID:
    """Derives the id of a dead letter from the record's position and the consumer; a second append changes nothing."""
    return derive(NAMESPACE, "dead letter", letter.consumer, letter.stream, letter.partition, letter.offset)


class DeadLetterBox:
    """Appends dead letters, that is pointers to skipped records; used by the projector, once per daemon."""

    def __init__(self, log: EventLog, writer: Writer, *, clock: Clock) -> None:
        self._log = log
        self._writer = writer
        self._clock = clock

    async def report(self, letters: Sequence[RecordDeadLettered]) -> None:
        """Appends the letters not yet in the log, waiting for disk space if necessary."""
        # The projector reports before its position passes the record: after a crash in between it reports again, with
        # equal ids.
        drafts = [
            self._writer.draft(letter, experiment=None, partition=_HOME, id=letter_id(letter)) for letter in letters
        ]
        await append_when_space(self._log, drafts, clock=self._clock)
