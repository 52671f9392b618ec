"""The payload of experiences, which is most of a log: dropped where nobody trains it any more, and brought back.

A record without its payload still says everything but tokens, masks and log-probabilities, and each of those arrays by
dtype, shape and sha256. Its place, its id and its link in the hash chain stay, so every fold of it stays the same; what
is brought back must be, byte for byte, what the chain covers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.registry import definition_of
from rftd.streams.log import topics
from rftd.streams.log.codec import encode_value
from rftd.streams.log.deadletters import head_of, understood_with
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import start_of_experiment
from rftd.streams.log.topics import Partition

AT_ONCE: Final = 128
"""Records that are rewritten in one transaction."""
_PRODUCED: Final = definition_of(ExperienceProduced)


@runtime_checkable
class PayloadLog(Protocol):
    """A log whose records can be rewritten: the embedded one. On Kafka a record stays what it was."""

    async def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Puts other values into records: without their payload (`thin`), or what they were before.

        Raises LogCorruptError for a value that is not what the record's link in the hash chain covers.
        """
        ...

    async def give_back(self) -> int:
        """Returns some of the space that nothing uses to the file system; what is left, in pages."""
        ...

    async def used_bytes(self) -> int:
        """The space that records take on disk, without what they have freed."""
        ...


class Dropped(msgspec.Struct, frozen=True):
    """Records whose payload was dropped or came back."""

    records: int
    size_bytes: int
    """Bytes by which the records shrank, or grew where their payload came back."""
    before: int = 0
    """Records that had lost their payload before."""

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.records + other.records, self.size_bytes + other.size_bytes, self.before + other.before)


NOTHING: Final = Dropped(0, 0)


async def drop_all(log: EventLog, experiment: UUID) -> Dropped:
    """Drops the payload of every experience of an experiment; nothing on a log that cannot."""
    if not isinstance(log, PayloadLog):
        return NOTHING
    dropped = NOTHING
    starts = await start_of_experiment(log, experiment)
    for partition in _experiences():
        async for records in _chunks(log, partition, starts.get(partition, 0)):
            dropped += await _drop(log, partition, [each for each in records if _is_of(each, experiment)])
    return dropped


async def drop_at(log: EventLog, places: Iterable[tuple[int, int]]) -> Dropped:
    """Drops the payload of the experiences at these (partition, offset) of their stream."""
    if not isinstance(log, PayloadLog):
        return NOTHING
    offsets: dict[Partition, list[int]] = {}
    for number, offset in places:
        offsets.setdefault(Partition(topics.EXPERIENCES, number), []).append(offset)
    dropped = NOTHING
    for partition, wanted in offsets.items():
        records = [record for offset in sorted(wanted) for record in await log.read(partition, offset, max_records=1)]
        dropped += await _drop(log, partition, records)
    return dropped


async def bring_back(log: EventLog, partition: Partition, values: Mapping[int, bytes]) -> Dropped:
    """Brings back the payload of those of these records that lost theirs; the others are left as they are.

    Raises LogCorruptError if a value is not what the record was.
    """
    if not isinstance(log, PayloadLog):
        return NOTHING
    thin: dict[int, bytes] = {}
    size_bytes = 0
    for offset, value in values.items():
        for record in await log.read(partition, offset, max_records=1):
            # What lost its payload before it was archived has the same value there: nothing would come back.
            if record.offset == offset and record.thin and record.value != value:
                thin[offset] = value
                size_bytes += len(value) - len(record.value)
    if thin:
        await log.rewrite(partition, thin, thin=False)
    return Dropped(len(thin), size_bytes)


async def give_back(log: EventLog, *, until: Callable[[], bool] = lambda: False) -> None:
    """Returns the space that nothing uses to the file system, a little at a time; ends early once `until` says so."""
    if isinstance(log, PayloadLog):
        left = await log.give_back()
        while left and not until():
            fewer = await log.give_back()
            if fewer >= left:  # others free pages faster, or the file cannot shrink now
                return
            left = fewer


def worth_it(whole_bytes: int, thin_bytes: int) -> bool:
    """True if a record becomes shorter: the arrays of the shortest experiences are no longer than their digests."""
    return thin_bytes < whole_bytes


def without_payload(value: ExperienceProduced) -> ExperienceProduced:
    """The experience with its arrays by their sha256 only."""
    return msgspec.structs.replace(value, **{name: array.dropped() for name, array in value.arrays.items()})


def _experiences() -> list[Partition]:
    return [partition for partition in topics.TRUTH if partition.stream == topics.EXPERIENCES]


async def _chunks(log: EventLog, partition: Partition, start: int) -> AsyncIterator[list[Record]]:
    # The present head: what is appended meanwhile is of experiments under way.
    head = (await log.heads()).get(partition)
    end = head.next_offset if head is not None else 0
    while start < end and (records := await log.read(partition, start, max_records=AT_ONCE)):
        start = records[-1].offset + 1
        yield records


def _is_of(record: Record, experiment: UUID) -> bool:
    head = head_of(record)
    return head is not None and head.experiment == experiment


def _produced(record: Record) -> ExperienceProduced | None:
    """The experience; None for another type, and for an older version, whose fields are laid out in another way."""
    head = head_of(record)
    if head is None or (head.type, head.version) != (_PRODUCED.name, _PRODUCED.version):
        return None
    decoded = understood_with(head, record)
    return decoded.event if decoded is not None and isinstance(decoded.event, ExperienceProduced) else None


async def _drop(log: PayloadLog, partition: Partition, records: Iterable[Record]) -> Dropped:
    thin: dict[int, bytes] = {}
    size_bytes = 0
    before = 0
    for record in records:
        before += record.thin
        event = None if record.thin else _produced(record)
        if event is None:
            continue
        value = encode_value(without_payload(event))
        # Also one that does not become shorter: its artifact goes, and it must not name what is not there.
        if worth_it(len(record.value), len(value)) or (value != record.value and event.tokens.artifact):
            thin[record.offset] = value
            size_bytes += len(record.value) - len(value)
    if thin:
        await log.rewrite(partition, thin, thin=True)
    return Dropped(len(thin), size_bytes, before)
