"""Records that are not ours: every reader leaves out the same ones, and one writer keeps a pointer to each.

A record is not ours if its envelope cannot be read, if no event type has its name, if it lies where its type or its
experiment does not belong, or if its payload cannot be read or says what cannot be (`rftd.streams.log.bounds`). Such a
record has no effect and stops nobody. One of a newer version of a type that is known stops its readers: to leave that
out would be to lose it.
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
from rftd.streams.log.codec import Decoded, Writer, decode_head, decode_with, place
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.patience import append_when_space
from rftd.streams.log.topics import Partition, may_hold, partition_of

_HOME: Final = Partition(topics.DEADLETTERS, 0)
_OF_EXPERIMENTS: Final = {*topics.KEYED, topics.TASKS, topics.EXPERIENCES}


def decode_ours(record: Record) -> Decoded:
    """The event of a record. Raises CodecError, with the reason, for one that is not ours; UnknownVersionError too."""
    return decode_routed(decode_head(record), record)


def decode_routed(head: Head, record: Record) -> Decoded:
    """The event of a record whose attributes were decoded before. Raises CodecError, as `decode_ours` does."""
    check_route(head, record)
    return decode_with(head, record)


def understood(record: Record) -> Decoded | None:
    """The event of a record, or None for one that is not ours. Raises UnknownVersionError."""
    head = head_of(record)
    return None if head is None else understood_with(head, record)


def understood_with(head: Head, record: Record) -> Decoded | None:
    """The event of a record whose attributes were decoded before; None and errors as of `understood`."""
    try:
        return decode_routed(head, record)
    except UnknownVersionError:
        raise
    except CodecError:
        return None


def head_of(record: Record) -> Head | None:
    """The attributes, for routing; None if they cannot be read."""
    try:
        return decode_head(record)
    except CodecError:
        return None


def check_route(head: Head, record: Record) -> None:
    """Raises CodecError if no type has this name, or if it lies where its type or its experiment does not belong."""
    # Folds rely on the order of one partition: the same event in another one would be taken in at any time.
    definition = definition_named(head.type)
    stream = record.partition.stream
    if not topics.TOPICS[stream].events:
        raise CodecError(f"{head.type} in the topic of requests, where no event counts", where=place(record))
    if definition.anywhere:
        return
    if definition.stream != stream:
        raise CodecError(f"{head.type} belongs in {definition.stream}", where=place(record))
    if head.experiment is None:
        if stream in _OF_EXPERIMENTS:
            raise CodecError(f"{head.type} of no experiment", where=place(record))
    # Keyed streams alone: tasks and experiences lie by slot and by group, where any experiment may be.
    elif not may_hold(record.partition, head.experiment):
        home = partition_of(stream, head.experiment)
        raise CodecError(f"{head.type} of an experiment that belongs to {home}", where=place(record))


def letter_id(letter: RecordDeadLettered) -> UUID:
    """The id of the pointer to a record: from its place and the consumer, so that writing it again changes nothing."""
    return derive(NAMESPACE, "dead letter", letter.consumer, letter.stream, letter.partition, letter.offset)


class DeadLetterBox:
    """Appends pointers to records that were left out. One daemon has one, given to its projector."""

    def __init__(self, log: EventLog, writer: Writer, *, clock: Clock) -> None:
        self._log = log
        self._writer = writer
        self._clock = clock

    async def report(self, letters: Sequence[RecordDeadLettered]) -> None:
        """Returns once each pointer is in the log; one that is there already is not repeated. Waits for space."""
        # The projector reports before its position passes the record, so a crash in between reports again: same id.
        drafts = [
            self._writer.draft(letter, experiment=None, partition=_HOME, id=letter_id(letter)) for letter in letters
        ]
        await append_when_space(self._log, drafts, clock=self._clock)
