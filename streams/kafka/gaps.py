"""`Gaps`: the missing records of partitions, distinguished from offsets taken by a transaction's marker.

rftd never writes in transactions, but any other program may, as an exactly-once sink does: each transaction leaves a
marker with an offset, and an aborted one leaves records not to be read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords

from rftd.ops import limits
from rftd.streams.kafka.partitions import Names, Offsets
from rftd.streams.kafka.records import Duplicates
from rftd.streams.log.envelope import Stretch
from rftd.streams.log.topics import Partition

_GAP_READ_SIZE_BYTES: Final = limits.MIB
"""Size of the read that looks into a gap."""
_READ_UNCOMMITTED: Final = 0  # in Kafka's protocol
"""Kafka's number of the isolation level that also shows records of open and aborted transactions."""


class Gaps:
    """Ranges of offsets without a readable record, and the lost records among them."""

    def __init__(self, names: Names, offsets: Offsets) -> None:
        """Begins without a gap."""
        self.found: dict[Partition, Stretch] = {}
        """Range from the first to the last missing record, by partition with losses."""
        self._names = names
        self._offsets = offsets
        self._unjudged: dict[Partition, list[Stretch]] = {}
        self._turn = asyncio.Lock()

    def look(self, partition: Partition, due: int, messages: Sequence[Any]) -> int:
        """Compares the messages' offsets with the next expected one, `due`, and notes gaps; returns the next expected
        offset.
        """
        for message in messages:
            if message.offset > due:
                self._unjudged.setdefault(partition, []).append(Stretch(due, message.offset))
            due = message.offset + 1
        return due

    async def missing(self, partition: Partition, first: int, end: int) -> list[Stretch] | None:
        """Returns the ranges of [first, end) not taken by transactions; None if no broker can tell."""
        missing: list[Stretch] = []
        while first < end:
            transactional = await self._transactional_offsets(partition, first)
            if transactional is None:
                return None
            missing += transactional.missing(first, min(end, transactional.end))
            first = transactional.end
        return missing

    async def lost(self, partition: Partition, first: int, end: int, repeated: Duplicates) -> int:
        """Returns the number of offsets in [first, end) taken neither by transactions nor by the repetitions
        `repeated`; if no broker can tell, transactions are taken to have none.
        """
        missing = await self.missing(partition, first, end)
        gaps = [Stretch(first, end)] if missing is None else missing
        return sum(not repeated.holds(partition, offset) for gap in gaps for offset in range(*gap))

    async def judge(self) -> None:
        """Adds the missing records of newly noted gaps to `found`, where a broker can tell."""
        if not self._unjudged:
            return
        async with self._turn:
            for partition in list(self._unjudged):
                while gaps := self._unjudged.get(partition):
                    missing = await self.missing(partition, *gaps[0])
                    if missing is None:
                        break  # no leader, or a failing one: it is asked another time
                    for lost in missing:
                        first, end = self.found.get(partition, lost)
                        self.found[partition] = Stretch(min(first, lost.first), max(end, lost.end))
                    del gaps[0]
                else:
                    self._unjudged.pop(partition, None)

    async def _transactional_offsets(self, partition: Partition, start: int) -> _Transactional | None:
        """Fetches the offsets taken by transactions from `start` on, as far as one answer reaches; None without an
        answer.
        """
        client = self._offsets.client
        name = self._names.kafka(partition)
        leader = client.cluster.leader_for_partition(name)
        topics = [(name.topic, [(name.partition, start, _GAP_READ_SIZE_BYTES)])]
        try:
            if leader in (None, -1):
                await client.force_metadata_update()
                return None
            answer = await client.send(leader, FetchRequest(0, 0, _GAP_READ_SIZE_BYTES, _READ_UNCOMMITTED, topics))
            ((_, ((_, error, *_, batch_bytes),)),) = answer.topics
            return None if error else _transactional_in(MemoryRecords(batch_bytes))
        except (kafka.KafkaError, OSError, TimeoutError):
            return None


class _Transactional(NamedTuple):
    """Offsets taken by transactions, as read from one answer of a broker."""

    offsets: list[int]
    """Ascending offsets of transactions' markers and records, including aborted ones."""
    end: int
    """The offset after the last batch."""

    def missing(self, first: int, end: int) -> Iterator[Stretch]:
        """Yields the ranges of [first, end) not taken by a transaction."""
        begin = bisect_left(self.offsets, first)
        for offset in (*self.offsets[begin : bisect_left(self.offsets, end)], end):
            if first < offset:
                yield Stretch(first, offset)
            first = offset + 1


def _transactional_in(batches: MemoryRecords) -> _Transactional | None:
    """Collects the offsets of transactions in batches; None without a batch, as records follow every gap and an empty
    answer proves nothing.
    """
    offsets: list[int] = []
    end = 0
    while batches.has_next():
        batch = batches.next_batch()
        end = batch.next_offset
        if batch.is_control_batch:
            offsets += range(batch.base_offset, end)
        elif batch.is_transactional:
            offsets += (record.offset for record in batch)
    return _Transactional(offsets, end) if end else None
