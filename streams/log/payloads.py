"""The payload of experiences, most of a log's bytes: dropped after its last use in training, and restored on demand.

A record without its payload keeps everything but tokens, masks and log-probabilities, and describes each of those
arrays by dtype, shape and sha256. Its position, its id and its link in the hash chain stay, and every fold of it stays
equal; a restored payload must match the hash chain byte for byte.
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

RECORDS_PER_REWRITE: Final = 128
"""Maximum number of records that `drop_all` rewrites in one transaction; `drop_at` rewrites any number."""
_PRODUCED: Final = definition_of(ExperienceProduced)
"""Definition of `experience.produced`, the only type of event with payloads."""


@runtime_checkable
class PayloadLog(Protocol):
    """A log whose records can be rewritten: the embedded log. On Kafka a record never changes."""

    async def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Replaces the values of records, by offset: by ones lacking the payload if `thin`, else by the original ones.

        Raises LogCorruptError for a value not covered by the record's link in the hash chain.
        """
        ...

    async def give_back(self) -> int:
        """Returns a part of the unused space to the file system; returns the number of remaining unused pages."""
        ...

    async def used_bytes(self) -> int:
        """Returns the disk space of records in bytes, without freed space."""
        ...


class Dropped(msgspec.Struct, frozen=True):
    """The outcome of dropping payloads, or of restoring them: counts of records and bytes, which can be added."""

    records: int
    """Number of records changed."""
    size_bytes: int
    """Bytes removed from the records by dropping, or added by restoring."""
    before: int = 0
    """Number of records that already lacked their payload before a drop; 0 after restoring."""

    def __add__(self, other: Dropped) -> Dropped:
        """Returns the sum of two outcomes, count by count."""
        return Dropped(self.records + other.records, self.size_bytes + other.size_bytes, self.before + other.before)


NOTHING_DROPPED: Final = Dropped(0, 0)
"""Counts of an operation that changed nothing."""


async def drop_all(log: EventLog, experiment: UUID) -> Dropped:
    """Drops the payloads of all experiences of an experiment; does nothing on a log that cannot."""
    if not isinstance(log, PayloadLog):
        return NOTHING_DROPPED
    dropped = NOTHING_DROPPED
    starts = await start_of_experiment(log, experiment)
    for partition in _experiences():
        async for records in _chunks(log, partition, starts.get(partition, 0)):
            dropped += await _drop(log, partition, [record for record in records if _is_of(record, experiment)])
    return dropped


async def drop_at(log: EventLog, positions: Iterable[tuple[int, int]]) -> Dropped:
    """Drops the payload of the experiences at these positions, (partition, offset) of their stream."""
    if not isinstance(log, PayloadLog):
        return NOTHING_DROPPED
    offsets: dict[Partition, list[int]] = {}
    for number, offset in positions:
        offsets.setdefault(Partition(topics.EXPERIENCES, number), []).append(offset)
    dropped = NOTHING_DROPPED
    for partition, chosen_offsets in offsets.items():
        records = [
            record for offset in sorted(chosen_offsets) for record in await log.read(partition, offset, max_records=1)
        ]
        dropped += await _drop(log, partition, records)
    return dropped


async def bring_back(log: EventLog, partition: Partition, values: Mapping[int, bytes]) -> Dropped:
    """Restores the payloads at these offsets; records that still have their payload stay unchanged.

    Raises LogCorruptError for a value other than the record's original.
    """
    if not isinstance(log, PayloadLog):
        return NOTHING_DROPPED
    thin: dict[int, bytes] = {}
    size_bytes = 0
    for offset, whole_value in values.items():
        for record in await log.read(partition, offset, max_records=1):
            # A payload lost before the archive was written has an equal value there: nothing would be restored.
            if record.offset == offset and record.thin and record.value != whole_value:
                thin[offset] = whole_value
                size_bytes += len(whole_value) - len(record.value)
    if thin:
        await log.rewrite(partition, thin, thin=False)
    return Dropped(len(thin), size_bytes)


async def give_back(log: EventLog, *, until: Callable[[], bool] = lambda: False) -> None:
    """Returns unused space to the file system, a little at a time; ends early once `until` returns True."""
    if isinstance(log, PayloadLog):
        free_pages = await log.give_back()
        while free_pages and not until():
            remaining = await log.give_back()
            if remaining >= free_pages:  # other tasks free pages faster, or the file cannot shrink now
                return
            free_pages = remaining


def worth_it(whole_bytes: int, thin_bytes: int) -> bool:
    """True if dropping makes the record shorter; the arrays of very short experiences are no longer than
    their digests.
    """
    return thin_bytes < whole_bytes


def without_payload(value: ExperienceProduced) -> ExperienceProduced:
    """Returns the experience with each array reduced to its dtype, shape and sha256; empty and already dropped arrays
    stay as they are.
    """
    return msgspec.structs.replace(value, **{name: array.dropped() for name, array in value.arrays.items()})


def _experiences() -> list[Partition]:
    """Returns the partitions of `rftd.experiences`."""
    return [partition for partition in topics.TRUTH if partition.stream == topics.EXPERIENCES]


async def _chunks(log: EventLog, partition: Partition, start: int) -> AsyncIterator[list[Record]]:
    """Yields the records of a partition from offset `start` to its end, in lists of at most `RECORDS_PER_REWRITE`."""
    # The present head: later records belong to experiments under way.
    head = (await log.heads()).get(partition)
    end = head.next_offset if head is not None else 0
    while start < end and (records := await log.read(partition, start, max_records=RECORDS_PER_REWRITE)):
        start = records[-1].offset + 1
        yield records


def _is_of(record: Record, experiment: UUID) -> bool:
    """True if the record belongs to the experiment."""
    head = head_of(record)
    return head is not None and head.experiment == experiment


def _produced(record: Record) -> ExperienceProduced | None:
    """Returns the experience decoded from a record; None for another type of event, another version of this type, with
    another layout of fields, and a record that cannot be decoded.
    """
    head = head_of(record)
    if head is None or (head.type, head.version) != (_PRODUCED.name, _PRODUCED.version):
        return None
    decoded = understood_with(head, record)
    return decoded.event if decoded is not None and isinstance(decoded.event, ExperienceProduced) else None


async def _drop(log: PayloadLog, partition: Partition, records: Iterable[Record]) -> Dropped:
    """Removes the payloads of these records in one transaction, and returns the counts.

    Unchanged are records without an experience or a payload, and those that would not get shorter, unless their arrays
    lie in artifacts, which are deleted.
    """
    thin: dict[int, bytes] = {}
    size_bytes = 0
    before_count = 0
    for record in records:
        before_count += record.thin
        event = None if record.thin else _produced(record)
        if event is None:
            continue
        thin_value = encode_value(without_payload(event))
        # Even without getting shorter: its artifact is deleted, and the record must not name a missing artifact.
        if worth_it(len(record.value), len(thin_value)) or (thin_value != record.value and event.tokens.artifact):
            thin[record.offset] = thin_value
            size_bytes += len(record.value) - len(thin_value)
    if thin:
        await log.rewrite(partition, thin, thin=True)
    return Dropped(len(thin), size_bytes, before_count)
