"""Reads of a few records anywhere: those that wait share a request, and no consumer has to seek for them."""

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
"""The most records of a direct read: a longer one goes on, and is better served by a consumer that reads ahead."""
_GAP_RECORDS: Final = 64
"""Reads of one partition that begin so close behind one another are fetched as one."""
_PARTITION_SIZE_BYTES: Final = 4 * limits.MIB
_REQUEST_SIZE_BYTES: Final = 16 * limits.MIB
_BATCH_SIZE_BYTES: Final = 16 * 1024
"""The bytes of one partition that are asked for where one record of a batch is wanted."""
_READ_COMMITTED: Final = 1  # in Kafka's protocol


class _Wanted:
    """One read that waits, of the offsets [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.found: list[Record] = []
        self.over = False


class Direct:
    """Records by their offsets. One request is under way at a time: what comes meanwhile is asked for together."""

    def __init__(self, names: Names, offsets: Offsets, duplicates: Duplicates) -> None:
        self._names = names
        self._offsets = offsets
        self._duplicates = duplicates
        # Reads that arrive while a request is under way gather behind it and share the next one.
        self._turn = asyncio.Lock()
        self._waiting: dict[Partition, list[_Wanted]] = {}
        self._average_bytes: dict[Partition, float] = {}

    async def read(self, partition: Partition, start: int, end: int, max_size_bytes: int) -> list[Record]:
        """Records of [start, end), at least one of them; [] if only a consumer can tell what is there.

        That is whenever anything is unusual: no leader, records that are truncated, a broker that fails.
        """
        wanted = _Wanted(start, end)
        self._waiting.setdefault(partition, []).append(wanted)
        try:
            async with self._turn:
                while not wanted.over:
                    await self._round(partition)
        finally:
            self._waiting[partition].remove(wanted)
            if not self._waiting[partition]:
                del self._waiting[partition]
        return _cut(wanted.found, max_size_bytes)

    async def chains(self, offsets: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], bytes]:
        """The chains of the records at these offsets, by partition and offset, as far as the brokers have them.

        Each partition is read in ascending order, a batch at a time: what lies in one batch is fetched once.
        """
        unread = {partition: deque(sorted(set(places))) for partition, places in offsets.items() if places}
        found: dict[tuple[Partition, int], bytes] = {}
        while unread:
            first = next(iter(unread))
            records = await self._one_batch_each(first, {partition: places[0] for partition, places in unread.items()})
            for partition, batch in records.items():
                places = unread[partition]
                chains = {record.offset: record.chain for record in batch}
                while places and batch and places[0] <= batch[-1].offset:
                    place = places.popleft()
                    if place in chains:
                        found[partition, place] = chains[place]
            if not records.get(first):
                unread[first].popleft()  # unusual: the caller asks a consumer
            # The broker owes a whole batch to the partition that stands first alone: each has its turn.
            unread[first] = unread.pop(first)
            unread = {partition: places for partition, places in unread.items() if places}
        return found

    async def _one_batch_each(self, first: Partition, starts: Mapping[Partition, int]) -> dict[Partition, list[Record]]:
        """The records from these offsets on, of partitions that one broker leads: of `first` at least one batch."""
        client = self._offsets.client
        leader = client.cluster.leader_for_partition(self._names.kafka(first))
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for partition in (first, *(other for other in starts if other != first)):
            name = self._names.kafka(partition)
            if client.cluster.leader_for_partition(name) == leader:
                topics.setdefault(name.topic, []).append((name.partition, starts[partition], _BATCH_SIZE_BYTES))
        records = {}
        for name, aborted, data in await self._fetched(leader, topics):
            partition = self._names.ours(name)
            records[partition] = self._records(name, aborted, starts[partition], data)
        return records

    async def _fetched(
        self, leader: int | None, topics: Mapping[str, list[tuple[int, int, int]]]
    ) -> list[tuple[TopicPartition, Any, bytes]]:
        """The answer of a broker, partition by partition, without those that it has an error for; [] if it fails."""
        if leader in (None, -1):
            return []
        request = FetchRequest(0, 0, _REQUEST_SIZE_BYTES, _READ_COMMITTED, list(topics.items()))
        try:
            answer = await self._offsets.client.send(leader, request)
        except (kafka.KafkaError, OSError, TimeoutError):
            return []
        return [
            (TopicPartition(topic, number), aborted, data)
            for topic, parts in answer.topics
            for number, error, _highwater, _stable, _start, aborted, *_replica, data in parts
            if error == 0
        ]

    def _records(self, name: TopicPartition, aborted: Any, start: int, data: bytes) -> list[Record]:
        """The records of an answer from an offset on; [] if a consumer has to say what is wrong with it."""
        try:
            messages = PartitionRecords(name, MemoryRecords(data), aborted, start, None, None, True, _READ_COMMITTED)
            return records_of(self._names.ours(name), list(messages), IdWindow(), self._duplicates)
        except kafka.KafkaError:
            return []

    async def _round(self, partition: Partition) -> None:
        """One request for all that waits; afterwards the earliest read of `partition` is over."""
        client = self._offsets.client
        leader = client.cluster.leader_for_partition(self._names.kafka(partition))
        asked: dict[Partition, _Wanted] = {}
        topics: dict[str, list[tuple[int, int, int]]] = {}
        # The broker sends at least one batch of the partition that stands first, and of the others while there is room.
        for each in (partition, *(other for other in self._waiting if other != partition)):
            name = self._names.kafka(each)
            unread = sorted((wanted for wanted in self._waiting[each] if not wanted.over), key=lambda read: read.start)
            if unread and client.cluster.leader_for_partition(name) == leader:
                asked[each] = unread[0]
                topics.setdefault(name.topic, []).append((name.partition, unread[0].start, self._size(each, unread)))
        for name, aborted, data in await self._fetched(leader, topics):
            self._hand_out(asked[self._names.ours(name)], name, aborted, data)
        asked[partition].over = True

    def _size(self, partition: Partition, unread: list[_Wanted]) -> int:
        """Bytes that will hold what is wanted from the first read on, as far as it lies together."""
        start = unread[0].start
        end = unread[0].end
        for wanted in unread:
            if wanted.start > end + _GAP_RECORDS:
                break
            end = max(end, wanted.end)
        # Whole batches are sent, of which the first may begin long before.
        size = BATCH_SIZE_BYTES + (end - start) * self._average_bytes.get(partition, 0.0)
        return min(int(size), _PARTITION_SIZE_BYTES)

    def _hand_out(self, first: _Wanted, name: TopicPartition, aborted: Any, data: bytes) -> None:
        """Gives the records of one partition to the reads that they complete, and in any case to the first."""
        partition = self._names.ours(name)
        records = self._records(name, aborted, first.start, data)
        if not records:
            return
        self._average_bytes[partition] = sum(len(each.head) + len(each.value) for each in records) / len(records)
        offsets = [record.offset for record in records]
        for wanted in self._waiting[partition]:
            if not wanted.over and (wanted is first or (first.start <= wanted.start and wanted.end <= offsets[-1] + 1)):
                wanted.found = records[bisect_left(offsets, wanted.start) : bisect_left(offsets, wanted.end)]
                wanted.over = True


def _cut(records: list[Record], max_size_bytes: int) -> list[Record]:
    """The first of these records, as many as the size allows, and at least one."""
    size = 0
    for count, record in enumerate(records):
        size += len(record.head) + len(record.value)
        if count and size > max_size_bytes:
            return records[:count]
    return records
