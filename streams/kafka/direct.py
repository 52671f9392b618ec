"""`Direct`: reads of a few records at any offset; waiting reads share one request, and no consumer has to seek."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka import errors as kafka
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from rftd.ops import limits
from rftd.streams.kafka.partitions import Names, Offsets
from rftd.streams.kafka.producers import BATCH_SIZE_BYTES
from rftd.streams.kafka.records import Duplicates, IdWindow, records_of
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition

FEW_RECORDS: Final = 256
"""Maximum number of records of a direct read; longer reads are served better by a consumer that reads ahead."""
_GAP_RECORDS: Final = 64
"""Maximum gap in records between two reads of one partition that are fetched together."""
_PARTITION_SIZE_BYTES: Final = 4 * limits.MIB
"""Maximum bytes requested of one partition in one request."""
_REQUEST_SIZE_BYTES: Final = 16 * limits.MIB
"""Maximum bytes of one answer, over all partitions."""
_BATCH_SIZE_BYTES: Final = 16 * 1024
"""Bytes requested of each partition by `Direct.chains`, where one batch is enough."""
_READ_COMMITTED: Final = 1  # in Kafka's protocol
"""Kafka's isolation level without records of open transactions."""


class _PendingRead:
    """A waiting read of the offsets [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        """Begins with nothing found."""
        self.start = start
        self.end = end
        self.found: list[Record] = []
        self.over = False


class Direct:
    """Reads of records by offset, one request at a time; reads arriving meanwhile share the next request."""

    def __init__(self, names: Names, offsets: Offsets, duplicates: Duplicates) -> None:
        """Creates the reads, with the connections of `offsets`."""
        self._names = names
        self._offsets = offsets
        self._duplicates = duplicates
        # Reads arriving while a request is under way gather behind it and share the next one.
        self._turn = asyncio.Lock()
        self._waiting: dict[Partition, list[_PendingRead]] = {}
        self._average_bytes: dict[Partition, float] = {}

    async def read(self, partition: Partition, start: int, end: int, max_size_bytes: int) -> list[Record]:
        """Returns records of [start, end), at least one; empty if only a consumer can read there.

        A consumer is needed in every unusual case: no leader, truncated records, a failing broker.
        """
        pending = _PendingRead(start, end)
        self._waiting.setdefault(partition, []).append(pending)
        try:
            async with self._turn:
                while not pending.over:
                    await self._round(partition)
        finally:
            self._waiting[partition].remove(pending)
            if not self._waiting[partition]:
                del self._waiting[partition]
        return _cut(pending.found, max_size_bytes)

    async def chains(self, offsets: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], bytes]:
        """Returns the chains of the records at these offsets; offsets that no broker answers for, or without a readable
        record, are absent.

        Each partition is read in ascending order, a batch at a time: the records of a batch are fetched once.
        """
        unread = {partition: deque(sorted(set(due))) for partition, due in offsets.items() if due}
        chains_by_position: dict[tuple[Partition, int], bytes] = {}
        while unread:
            first = next(iter(unread))
            records = await self._one_batch_each(first, {partition: due[0] for partition, due in unread.items()})
            for partition, batch in records.items():
                due = unread[partition]
                chains = {record.offset: record.chain for record in batch}
                while due and batch and due[0] <= batch[-1].offset:
                    offset = due.popleft()
                    if offset in chains:
                        chains_by_position[partition, offset] = chains[offset]
            if not records.get(first):
                unread[first].popleft()  # unusual: the caller asks a consumer
            # The broker owes a whole batch only to the first partition of a request: the partitions take turns.
            unread[first] = unread.pop(first)
            unread = {partition: due for partition, due in unread.items() if due}
        return chains_by_position

    async def _one_batch_each(self, first: Partition, starts: Mapping[Partition, int]) -> dict[Partition, list[Record]]:
        """Fetches records from these offsets on, of partitions with one leader in common: of `first` at least one
        batch.
        """
        client = self._offsets.client
        leader = client.cluster.leader_for_partition(self._names.kafka(first))
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for partition in (first, *(key for key in starts if key != first)):
            name = self._names.kafka(partition)
            if client.cluster.leader_for_partition(name) == leader:
                topics.setdefault(name.topic, []).append((name.partition, starts[partition], _BATCH_SIZE_BYTES))
        records = {}
        for name, aborted, payload in await self._fetched(leader, topics):
            partition = self._names.ours(name)
            records[partition] = self._records(name, aborted, starts[partition], payload)
        return records

    async def _fetched(
        self, leader: int | None, topics: Mapping[str, list[tuple[int, int, int]]]
    ) -> list[tuple[TopicPartition, Any, bytes]]:
        """Sends a request to a broker; returns the answer by partition, without failed partitions; [] without an
        answer.
        """
        if leader in (None, -1):
            return []
        request = FetchRequest(0, 0, _REQUEST_SIZE_BYTES, _READ_COMMITTED, list(topics.items()))
        try:
            answer = await self._offsets.client.send(leader, request)
        except (kafka.KafkaError, OSError, TimeoutError):
            return []
        return [
            (TopicPartition(topic, number), aborted, payload)
            for topic, parts in answer.topics
            for number, error, _highwater, _stable, _start, aborted, *_replica, payload in parts
            if error == 0
        ]

    def _records(self, name: TopicPartition, aborted: Any, start: int, payload: bytes) -> list[Record]:
        """Decodes the records of an answer from an offset on; [] if a consumer has to find the fault."""
        try:
            messages = PartitionRecords(name, MemoryRecords(payload), aborted, start, None, None, True, _READ_COMMITTED)
            return records_of(self._names.ours(name), list(messages), IdWindow(), self._duplicates)
        except kafka.KafkaError:
            return []

    async def _round(self, partition: Partition) -> None:
        """Sends one request for the waiting reads of all partitions led by the broker of `partition`, and ends at least
        the earliest read of `partition`.
        """
        client = self._offsets.client
        leader = client.cluster.leader_for_partition(self._names.kafka(partition))
        requested: dict[Partition, _PendingRead] = {}
        topics: dict[str, list[tuple[int, int, int]]] = {}
        # The broker sends at least one batch of the request's first partition, and of the others while there is room.
        for queued in (partition, *(key for key in self._waiting if key != partition)):
            name = self._names.kafka(queued)
            unread = sorted(
                (pending for pending in self._waiting[queued] if not pending.over), key=lambda read: read.start
            )
            if unread and client.cluster.leader_for_partition(name) == leader:
                requested[queued] = unread[0]
                topics.setdefault(name.topic, []).append((name.partition, unread[0].start, self._size(queued, unread)))
        for name, aborted, payload in await self._fetched(leader, topics):
            self._hand_out(requested[self._names.ours(name)], name, aborted, payload)
        requested[partition].over = True

    def _size(self, partition: Partition, unread: list[_PendingRead]) -> int:
        """Estimates the bytes of the waiting reads from the first one on, up to the first large gap."""
        start = unread[0].start
        end = unread[0].end
        for pending in unread:
            if pending.start > end + _GAP_RECORDS:
                break
            end = max(end, pending.end)
        # Whole batches are sent, and the first may begin long before the offset.
        size = BATCH_SIZE_BYTES + (end - start) * self._average_bytes.get(partition, 0.0)
        return min(int(size), _PARTITION_SIZE_BYTES)

    def _hand_out(self, first: _PendingRead, name: TopicPartition, aborted: Any, payload: bytes) -> None:
        """Gives a partition's records to all reads completed by the answer, and in any case to the first; does nothing
        without a readable record.
        """
        partition = self._names.ours(name)
        records = self._records(name, aborted, first.start, payload)
        if not records:
            return
        self._average_bytes[partition] = sum(len(record.head) + len(record.value) for record in records) / len(records)
        offsets = [record.offset for record in records]
        for pending in self._waiting[partition]:
            if not pending.over and (
                pending is first or (first.start <= pending.start and pending.end <= offsets[-1] + 1)
            ):
                pending.found = records[bisect_left(offsets, pending.start) : bisect_left(offsets, pending.end)]
                pending.over = True


def _cut(records: list[Record], max_size_bytes: int) -> list[Record]:
    """Returns the first of these records, up to the size, and at least one."""
    size = 0
    for count, record in enumerate(records):
        size += len(record.head) + len(record.value)
        if count and size > max_size_bytes:
            return records[:count]
    return records
