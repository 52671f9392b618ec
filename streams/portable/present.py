"""Comparison of an export with a log that may already have the experiment: not at all, partly, completely, or
differently.
"""

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
from rftd.streams.portable.experiment_records import IMPORTED, OwnRecords
from rftd.streams.portable.positions import Blank, Places, rewrite
from rftd.streams.portable.source import ExportedRecord, encode

_BLANK: Final = Blank()
"""Placeholder for every position, so that records differing only in positions are equal."""


class PresentRecords:
    """Result of the comparison: which exported records the log already has, and at which positions."""

    def __init__(self, before: Heads) -> None:
        self.places = Places()
        """New positions of the records in both."""
        self.before = before
        """Heads of the log below which it has no record of the experiment."""
        self.records = 0
        """Number of records in both."""
        self.later = 0
        """Number of the experiment's records only in the log: it continued there after an import."""


async def submitted_in(log: EventLog, experiment: UUID) -> ExperimentSubmitted | None:
    """Reads the submission of an experiment from this log; None for an unknown experiment."""
    for record in await OwnRecords(log, experiment).read(partition_of(topics.EXPERIMENTS, experiment), 0):
        event = decode(record).event
        if isinstance(event, ExperimentSubmitted):
            return event
    return None


async def was_imported(log: EventLog, experiment: UUID) -> bool:
    """True if this log records the experiment's import from an exported file."""
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
    """Compares `total` exported records with the log, ignoring positions, in each partition's order.

    Raises ConflictError if the log has another history under the experiment's id.
    """
    present = PresentRecords(await log.heads())
    own_records = OwnRecords(log, experiment)
    if await submitted_in(log, experiment) is None:
        return present
    later: Record | None = None
    for partition in topics.EVENTS:
        source = sources.get(partition, iter(()))
        async for chunk in own_records.chunks(partition):
            extra = await asyncio.to_thread(_take, chunk, source, present)
            later = later or extra
    # Records only in the destination are a continued history; beside missing records they are another history, for the
    # missing ones would come later.
    if later is not None and present.records < total:
        raise _different(later, "the destination continued from a part of this experiment")
    return present


def _take(chunk: Sequence[Record], source: Iterator[ExportedRecord], present: PresentRecords) -> Record | None:
    """Counts the records also in the export. Returns the first record missing in the export."""
    later: Record | None = None
    for record in chunk:
        exported = next(source, None)
        if exported is None:
            present.later += 1
            later = later or record
            continue
        # Bytes first, equal for nearly all; a head differs if the event was rewritten in a newer version.
        if record.head != exported.head_bytes and decode(record).head.id != exported.head.id:
            raise _different(record, f"event {exported.head.id} is expected there")
        if not _equal(record, exported):
            raise _different(record, f"event {exported.head.id} has other content")
        present.places.add(record.partition, exported.offset, record.offset)
        present.records += 1
        if isinstance(exported.event, ExperimentAccepted):
            accepted = decode(record).event
            assert isinstance(accepted, ExperimentAccepted)
            present.before = {
                Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in accepted.start
            }
    return later


def _equal(record: Record, exported: ExportedRecord) -> bool:
    if record.value == exported.value:  # nearly all: only events with positions, or without their payload, are decoded
        return True
    try:
        present_event = decode(record).event
    except CodecError:
        return False
    return _blank(present_event) == _blank(exported.event)


def _blank(event: Event) -> bytes:
    """Returns the bytes required to be equal: without positions, and without a payload, whose digests stay."""
    if isinstance(event, ExperienceProduced):
        event = without_payload(event)
    if isinstance(event, ExperimentSubmitted):  # moved folders show in the specification
        event = msgspec.structs.replace(event, moves=())
    return encode(rewrite(event, _BLANK))


def _different(record: Record, reason: str) -> ConflictError:
    return ConflictError(
        f"the destination holds another experiment under this id: {reason}",
        where=place(record),
        fix="import into a log without it; repeat an import with the same --map",
    )
