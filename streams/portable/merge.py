"""The order in which exported records can be appended: that of each partition, and a named record before its namer.

What an event names was in the log before it, so such an order exists for every export of a log that is whole. The next
record is the earliest by its time among those whose named records have a new place. A record has one once it is
appended, so a batch ends where everything left waits for a record of the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import ArchiveError
from rftd.streams import topics
from rftd.streams.events.experiment import ExperimentAccepted
from rftd.streams.portable.positions import NeededRecords, Places, rewrite
from rftd.streams.portable.source import ExportedRecord
from rftd.streams.topics import Partition, partition_of

BATCH_RECORDS: Final = 1024
"""The records of one append: each batch costs a commit, and is held in memory twice."""
BATCH_SIZE_BYTES: Final = limits.FETCH_SIZE_BYTES


class Merge:
    """Batches of records in such an order. The caller appends one and says where it landed, then asks for the next.

    The spine up to `experiment.accepted` comes first and alone: an experiment has nothing below its `start`.
    """

    def __init__(
        self,
        experiment: UUID,
        sources: Mapping[Partition, Iterator[ExportedRecord]],
        places: Places,
        *,
        records: int = BATCH_RECORDS,
    ) -> None:
        """Leaves out the records that have a place already."""
        self._places = places
        self._sources = dict(sources)
        self._records = records
        self._heads: dict[Partition, ExportedRecord] = {}
        self._needs: dict[Partition, Mapping[Partition, int]] = {}
        self._spine: Final = partition_of(topics.EXPERIMENTS, experiment)
        self._opened = False
        for partition in self._sources:
            for _ in range(places.count(partition)):
                self._opened |= isinstance(next(self._sources[partition]).event, ExperimentAccepted)
            self._advance(partition)

    def next_batch(self) -> Sequence[ExportedRecord]:
        """The records that can be appended now, in order; none at the end. Raises ArchiveError if no order exists."""
        if not self._opened:
            return self._opening()
        batch: list[ExportedRecord] = []
        size_bytes = 0
        # The offsets at which the records without a place begin; those of this batch have none yet.
        pending = {partition: entry.offset for partition, entry in self._heads.items()}
        ready = [
            (entry.head.time_ns, partition) for partition, entry in self._heads.items() if self._free(entry, pending)
        ]
        heapq.heapify(ready)
        while ready and len(batch) < self._records and size_bytes < BATCH_SIZE_BYTES:
            _, partition = heapq.heappop(ready)
            entry = self._heads[partition]
            batch.append(entry)
            size_bytes += len(entry.head_bytes) + len(entry.value)
            following = self._advance(partition)
            if following is not None and self._free(following, pending):
                heapq.heappush(ready, (following.head.time_ns, partition))
        if not batch and self._heads:
            raise self._stuck(pending)
        return batch

    def _opening(self) -> Sequence[ExportedRecord]:
        batch: list[ExportedRecord] = []
        while not self._opened and self._spine in self._heads:
            batch.append(self._heads[self._spine])
            self._opened = isinstance(batch[-1].event, ExperimentAccepted)
            self._advance(self._spine)
            if len(batch) >= self._records:
                return batch
        self._opened = True
        return batch or self.next_batch()

    def _advance(self, partition: Partition) -> ExportedRecord | None:
        entry = next(self._sources[partition], None)
        if entry is None:
            self._heads.pop(partition, None)
            return None
        needs = NeededRecords()
        rewrite(entry.event, needs)
        self._heads[partition] = entry
        self._needs[partition] = needs.wanted
        return entry

    def _free(self, entry: ExportedRecord, pending: Mapping[Partition, int]) -> bool:
        needs = self._needs[entry.partition]
        return all(partition not in pending or pending[partition] >= end for partition, end in needs.items())

    def _stuck(self, pending: Mapping[Partition, int]) -> ArchiveError:
        # Two records that name each other, which no log can hold: the file was made by hand, or of a damaged log.
        partition, entry = min(self._heads.items(), key=lambda item: item[1].head.time_ns)
        waits = [
            f"{other}@{pending[other]}"
            for other, end in self._needs[partition].items()
            if other in pending and pending[other] < end
        ]
        return ArchiveError(
            f"no order fits: {entry.head.type} at {partition}@{entry.offset} names what lies at or after {waits[0]}, "
            "which in turn waits for it",
            fix="run rftd verify on the log that it was exported from",
        )
