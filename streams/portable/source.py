"""Records of an export, decoded one by one, each checked to belong to its experiment and partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import ArchiveError, CodecError
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_head, decode_with
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.topics import Partition, may_hold
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.format import PartitionPart, read_frames

_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
"""Encoder of exported records, with ids as 16 bytes."""
_UNREADABLE: Final = Event()
"""Placeholder for a payload this release cannot decode; it is copied unchanged."""


class ExportedRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of an export: decoded, and with its original bytes."""

    partition: Partition
    offset: int
    """Offset in the exporting log."""
    head: Head
    head_bytes: bytes
    event: Event
    """The event, with paths changed to this machine's folders."""
    value: bytes
    """Payload bytes as exported."""
    moved: bool
    """True if a path in the event was changed."""

    def encoded(self, event: Event) -> tuple[bytes, bytes]:
        """Returns head and value to append for `event`, the record's possibly rewritten event; the exported bytes if
        unchanged.
        """
        # Unchanged bytes wherever possible: fields of a newer release and another writer's encoding survive the move.
        if not self.moved and (event is self.event or event == self.event):
            return self.head_bytes, self.value
        self._refuse_unknown_fields()
        version = definition_of(type(event)).version
        if version == self.head.version:
            return self.head_bytes, encode(event)
        return _encoder.encode(msgspec.structs.replace(self.head, version=version)), encode(event)

    def _refuse_unknown_fields(self) -> None:
        """Raises UnknownVersionError for a field of a newer release, which would be lost in a rewritten event."""
        event_type = type(self.event)
        fields = msgpack_decoder(dict[str, msgspec.Raw]).decode(self.value)
        if self.head.version == definition_of(event_type).version and (
            unknown := sorted(set(fields) - set(event_type.__struct_fields__))
        ):
            raise UnknownVersionError(
                f"{self.head.type} has a field {unknown[0]!r} unknown to this release",
                where=f"{self.partition}@{self.offset}",
                fix="import it with the release of rftd that wrote it, or a newer one",
            )


def encode(event: Event) -> bytes:
    """Encodes an event's payload as stored in the log."""
    return _encoder.encode(event)


def entries(archive: ArchiveReader, partition_part: PartitionPart, folders: Folders) -> Iterator[ExportedRecord]:
    """Yields the records of one partition of an export. Raises ArchiveError for a record that does not belong there."""
    partition = Partition(partition_part.stream, partition_part.partition)
    experiment = archive.manifest.experiment
    where = f"{archive.path}:{partition_part.member.name}"
    stream = archive.open(partition_part.member)
    count = 0
    last = -1
    try:
        for frame in read_frames(stream, where):
            # Below 2**62: offsets become 64-bit integers, and one more is added to them here and there.
            if not last < frame.offset < 1 << 62 or (count == 0 and frame.offset != partition_part.first):
                raise ArchiveError(f"offset {frame.offset} follows {last}", where=where)
            count = count + 1
            last = frame.offset
            yield _entry(Record(partition, frame.offset, b"", frame.head, frame.value), experiment, where, folders)
    finally:
        stream.close()
    if (count, last) != (partition_part.records, partition_part.last):
        raise ArchiveError(f"it holds {count} records to {last}; the manifest says otherwise", where=where)


def check_partitions(archive: ArchiveReader) -> None:
    """Raises ArchiveError for a partition listed twice, or one that cannot have records of the experiment."""
    checked = set()
    for partition_part in archive.manifest.partitions:
        partition = Partition(partition_part.stream, partition_part.partition)
        name = f"log/{partition_part.stream}-{partition_part.partition}"
        if (
            partition not in topics.EVENTS
            or not may_hold(partition, archive.manifest.experiment)
            or partition in checked
            or partition_part.member.name != name
        ):
            raise ArchiveError(f"{partition} cannot hold records of the experiment", where=str(archive.path))
        checked.add(partition)


def _entry(record: Record, experiment: UUID, where: str, folders: Folders) -> ExportedRecord:
    try:
        head = decode_head(record)
    except CodecError as error:
        raise ArchiveError(error.what, where=f"{where}@{record.offset}") from error
    if head.experiment != experiment:
        raise ArchiveError(f"a record of experiment {head.experiment}", where=f"{where}@{record.offset}")
    try:
        exported = decode_with(head, record).event
    except UnknownVersionError:
        raise  # its positions cannot be rewritten by a release unaware of their fields
    except CodecError:  # a dead letter in its own log: it is copied, and stays one
        return ExportedRecord(record.partition, record.offset, head, record.head, _UNREADABLE, record.value, False)
    event = folders.event(exported)
    moved = event is not exported and event != exported
    return ExportedRecord(record.partition, record.offset, head, record.head, event, record.value, moved)
