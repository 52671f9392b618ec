"""Views of one experiment's records as a separate log: from a shared log (`OwnRecords`), or from an export
(`ArchiveLog`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import CodecError, ConflictError, RftdError
from rftd.streams.events.experiment import ExperimentImported
from rftd.streams.events.registry import definition_of
from rftd.streams.log import topics
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.codec import decode_head
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.log import EventLog, Subscription
from rftd.streams.log.topics import Partition
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.format import PartitionPart, read_frames

IMPORTED: Final = definition_of(ExperimentImported).name
"""Type of the event that describes one log only, and is never exported."""


class ReadOnlyLog(EventLog):
    """Base of logs that only read: appends, truncation and subscriptions raise errors; subclasses define `read` and
    `heads`.
    """

    @property
    def failure(self) -> RftdError | None:
        """None: nothing is appended."""
        return None

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Raises an error: the log is read-only."""
        raise ConflictError("these records are read-only")

    def subscribe(self, positions: Mapping[Partition, int]) -> Subscription:
        """Raises an error: the log has no followers."""
        raise ConflictError("these records are read, not followed")

    async def check_heads(self, remembered: Heads) -> None:
        """Returns if `remembered` is empty: nobody can remember heads of such a view."""
        assert not remembered, "these records are read-only: nothing can be stored about them"

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Raises an error: the log is read-only."""
        raise ConflictError("these records are read-only")

    async def close(self) -> None:
        """Does nothing: the log or file below belongs to another owner, who closes it."""
        return


class OwnRecords(ReadOnlyLog):
    """A read-only view of a log with only one experiment's records; the other records are gaps of offsets.

    Heads are those of the complete log. `experiment.imported` is left out, because it describes one log only.
    """

    def __init__(self, log: EventLog, experiment: UUID) -> None:
        self._log = log
        self._experiment = experiment

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        # On until a record is found: an empty list would mean the end of the partition, where only other experiments
        # have records.
        """Returns the experiment's records of a partition from `start` on; see `EventLog.read`."""
        while records := await self._log.read(partition, start, max_records=max_records, max_size_bytes=max_size_bytes):
            if own_records := [record for record in records if self.owns(record)]:
                return own_records
            start = records[-1].offset + 1
        return []

    async def chunks(self, partition: Partition, end: int | None = None) -> AsyncIterator[list[Record]]:
        """Yields the experiment's records of a partition below the offset `end` (None: the head), a fetch at a time.

        A record repeated by Kafka is yielded once, at its first position: another log would not accept it a second
        time.
        """
        ids: set[bytes] = set()
        start = 0
        while end is None or start < end:
            records = await self.read(partition, start)
            if not records:
                return
            start = records[-1].offset + 1
            fresh = []
            for record in records:
                id = decode_head(record).id.bytes
                if (end is None or record.offset < end) and id not in ids:
                    ids.add(id)
                    fresh.append(record)
            if fresh:
                yield fresh

    def owns(self, record: Record) -> bool:
        """True if the record's envelope names the experiment; False if it is unreadable."""
        try:
            head = decode_head(record)
        except CodecError:
            return False
        return head.experiment == self._experiment and head.type != IMPORTED

    async def heads(self) -> Heads:
        """Returns the heads of the complete log."""
        return await self._log.heads()


async def closed_heads(log: EventLog) -> Heads:
    """Returns heads suited for a consistent copy: every record named by a record below them is below them, too.

    Concurrent writes are allowed. On a log without a common moment for all heads, the heads of partitions naming others
    are read first.
    """
    spine = await log.heads()
    tasks = await log.heads()
    last_heads = await log.heads()
    # A record names only earlier records: heads read later include the records named below heads read earlier.
    first_heads = {topics.EXPERIMENTS: spine, topics.TASKS: tasks}
    closed: Heads = {}
    for partition in topics.EVENTS:
        partition_heads = first_heads.get(partition.stream, last_heads)
        if partition in partition_heads:
            closed[partition] = partition_heads[partition]
    return closed


class ArchiveLog(ReadOnlyLog):
    """A read-only view of an export, without hash chains; each partition can be read once, in order."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._parts = {
            Partition(partition_part.stream, partition_part.partition): partition_part
            for partition_part in archive.manifest.partitions
        }
        self._records = {
            partition: self._open(archive, partition_part) for partition, partition_part in self._parts.items()
        }

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Returns the next records of a partition; `start` must continue the last read."""
        source = self._records.get(partition, iter(()))
        records = await asyncio.to_thread(lambda: list(islice(source, max_records)))
        assert not records or records[0].offset >= start, "read from front to back"
        return records

    async def heads(self) -> Heads:
        """Returns the ends of the exported partitions, without chains."""
        return {partition: Mark(partition_part.last + 1, GENESIS) for partition, partition_part in self._parts.items()}

    @staticmethod
    def _open(archive: ArchiveReader, partition_part: PartitionPart) -> Iterator[Record]:
        partition = Partition(partition_part.stream, partition_part.partition)
        stream = archive.open(partition_part.member)
        for frame in read_frames(stream, f"{archive.path}:{partition_part.member.name}"):
            yield Record(partition, frame.offset, GENESIS, frame.head, frame.value)
