"""`ArchiveLog`: an export's records where they lay, as a read-only log that is read from front to back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from rftd.ops import limits
from rftd.streams.chain import GENESIS, Heads, Mark
from rftd.streams.envelope import Record
from rftd.streams.topics import Partition
from rftd.streams.transfer.container import ArchiveReader
from rftd.streams.transfer.frames import read_frames
from rftd.streams.transfer.manifest import PartitionPart
from rftd.streams.transfer.own import ReadOnlyLog


class ArchiveLog(ReadOnlyLog):
    """An `EventLog` without chains; each partition is read once, in order."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._parts = {Partition(part.stream, part.partition): part for part in archive.manifest.partitions}
        self._records = {partition: self._open(archive, part) for partition, part in self._parts.items()}

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        source = self._records.get(partition, iter(()))
        records = await asyncio.to_thread(lambda: list(islice(source, max_records)))
        assert not records or records[0].offset >= start, "read from front to back"
        return records

    async def heads(self) -> Heads:
        return {partition: Mark(part.last + 1, GENESIS) for partition, part in self._parts.items()}

    @staticmethod
    def _open(archive: ArchiveReader, part: PartitionPart) -> Iterator[Record]:
        partition, stream = Partition(part.stream, part.partition), archive.open(part.member)
        for frame in read_frames(stream, f"{archive.path}:{part.member.name}"):
            yield Record(partition, frame.offset, GENESIS, frame.head, frame.value)
