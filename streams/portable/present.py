"""The comparison of an export with a log that may hold it already: none of it, a part, all, or something else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.errors import CodecError, ConflictError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.events.registry import Event
from rftd.streams.log import topics
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.codec import decode, place
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.payloads import without_payload
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.portable.own import IMPORTED, OwnRecords
from rftd.streams.portable.positions import Blank, Places, rewrite
from rftd.streams.portable.source import ExportedRecord, encode

_BLANK: Final = Blank()


class PresentRecords:
    """The records of one experiment that the destination holds."""

    def __init__(self, before: Heads) -> None:
        self.places = Places()
        """The places of the records that both hold."""
        self.before = before
        """The heads below which the destination holds nothing of the experiment."""
        self.records = 0
        """The number of records that both hold."""
        self.later = 0
        """The number of records that only the destination holds: it went on after it was imported."""


async def submitted_in(log: EventLog, experiment: UUID) -> ExperimentSubmitted | None:
    """The experiment as this log has it; None if the log does not know it."""
    for record in await OwnRecords(log, experiment).read(partition_of(topics.EXPERIMENTS, experiment), 0):
        event = decode(record).event
        if isinstance(event, ExperimentSubmitted):
            return event
    return None


async def was_imported(log: EventLog, experiment: UUID) -> bool:
    """True if this log says that the experiment came from an exported file."""
    partition = partition_of(topics.EXPERIMENTS, experiment)
    offset = 0
    while records := await log.read(partition, offset):
        offset = records[-1].offset + 1
        heads = [head for record in records if (head := head_of(record)) is not None]
        if any(head.experiment == experiment and head.type == IMPORTED for head in heads):
            return True
    return False


async def compare(
    log: EventLog, experiment: UUID, sources: Mapping[Partition, Iterator[ExportedRecord]], total: int
) -> PresentRecords:
    """The part of `total` exported records that the log holds, compared without places, in each partition's order.

    Raises ConflictError if it holds another history under the experiment's id.
    """
    present = PresentRecords(await log.heads())
    own = OwnRecords(log, experiment)
    if await submitted_in(log, experiment) is None:
        return present
    later: Record | None = None
    for partition in topics.EVENTS:
        source = sources.get(partition, iter(()))
        async for chunk in own.chunks(partition):
            extra = await asyncio.to_thread(_take, chunk, source, present)
            later = later or extra
    # Records that only the destination has are a history that went on; beside missing ones they are another history,
    # for the missing ones would come after them.
    if later is not None and present.records < total:
        raise _different(later, "the destination went on from a part of this experiment")
    return present


def _take(chunk: Sequence[Record], source: Iterator[ExportedRecord], present: PresentRecords) -> Record | None:
    """Takes in the records that are in the export too. Returns the first that is not."""
    later: Record | None = None
    for record in chunk:
        entry = next(source, None)
        if entry is None:
            present.later += 1
            later = later or record
            continue
        # Bytes first, which are equal for nearly all; a head differs where the event was rewritten in a newer version.
        if record.head != entry.head_bytes and decode(record).head.id != entry.head.id:
            raise _different(record, f"event {entry.head.id} is expected there")
        if not _equal(record, entry):
            raise _different(record, f"event {entry.head.id} has another content")
        present.places.add(record.partition, entry.offset, record.offset)
        present.records += 1
        if isinstance(entry.event, ExperimentAccepted):
            accepted = decode(record).event
            assert isinstance(accepted, ExperimentAccepted)
            present.before = {
                Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in accepted.start
            }
    return later


def _equal(record: Record, entry: ExportedRecord) -> bool:
    if record.value == entry.value:  # nearly all: only events with places, or without their payload, are decoded
        return True
    try:
        found = decode(record).event
    except CodecError:
        return False
    return _blank(found) == _blank(entry.event)


def _blank(event: Event) -> bytes:
    """The bytes that must be equal: without places, and without a payload, whose digests stay."""
    if isinstance(event, ExperienceProduced):
        event = without_payload(event)
    if isinstance(event, ExperimentSubmitted):  # what was moved shows in the specification
        event = msgspec.structs.replace(event, moves=())
    return encode(rewrite(event, _BLANK))


def _different(record: Record, what: str) -> ConflictError:
    return ConflictError(
        f"the destination holds another experiment under this id: {what}",
        where=place(record),
        fix="import into a log that does not hold it; the same file is imported with the same --map",
    )
