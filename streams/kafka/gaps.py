"""`Gaps`: the records that are missing within partitions, told from offsets that a transaction's marker took.

Nothing of rftd writes in transactions, but any other program may, as an exactly-once sink does: each transaction leaves
a marker at an offset of its own, and one that was aborted leaves records that nobody is to read.
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

_LOOK_SIZE_BYTES: Final = limits.MIB
_READ_UNCOMMITTED: Final = 0  # in Kafka's protocol


class Gaps:
    """The stretches of offsets at which no reader was given a record, and those of them that are a loss."""

    def __init__(self, names: Names, offsets: Offsets) -> None:
        self.found: dict[Partition, Stretch] = {}
        """The stretch from the first missing record to the last one, by partition that lost some."""
        self._names = names
        self._offsets = offsets
        self._unjudged: dict[Partition, list[Stretch]] = {}
        self._turn = asyncio.Lock()

    def look(self, partition: Partition, due: int, messages: Sequence[Any]) -> int:
        """The offset that is due after these messages, each compared with the one that was due before."""
        for message in messages:
            if message.offset > due:
                self._unjudged.setdefault(partition, []).append(Stretch(due, message.offset))
            due = message.offset + 1
        return due

    async def missing(self, partition: Partition, first: int, end: int) -> list[Stretch] | None:
        """The stretches of [first, end) that no transaction accounts for; None if no broker says what lies there."""
        missing: list[Stretch] = []
        while first < end:
            held = await self._held(partition, first)
            if held is None:
                return None
            missing += held.missing(first, min(end, held.end))
            first = held.end
        return missing

    async def lost(self, partition: Partition, first: int, end: int, repeated: Duplicates) -> int:
        """The number of offsets in [first, end) that neither a transaction nor a repetition accounts for."""
        missing = await self.missing(partition, first, end)
        gaps = [Stretch(first, end)] if missing is None else missing
        return sum(not repeated.holds(partition, offset) for gap in gaps for offset in range(*gap))

    async def judge(self) -> None:
        """Adds to `found` what is missing in the gaps that were met since, as far as brokers say what lies there."""
        if not self._unjudged:
            return
        async with self._turn:
            for partition in list(self._unjudged):
                while gaps := self._unjudged.get(partition):
                    missing = await self.missing(partition, *gaps[0])
                    if missing is None:
                        break  # no leader, or one that fails: it is asked another time
                    for lost in missing:
                        first, end = self.found.get(partition, lost)
                        self.found[partition] = Stretch(min(first, lost.first), max(end, lost.end))
                    del gaps[0]
                else:
                    self._unjudged.pop(partition, None)

    async def _held(self, partition: Partition, start: int) -> _Held | None:
        """The offsets that transactions hold from `start` on, as far as one answer reaches; None if nobody answers."""
        client = self._offsets.client
        name = self._names.kafka(partition)
        leader = client.cluster.leader_for_partition(name)
        topics = [(name.topic, [(name.partition, start, _LOOK_SIZE_BYTES)])]
        try:
            if leader in (None, -1):
                await client.force_metadata_update()
                return None
            answer = await client.send(leader, FetchRequest(0, 0, _LOOK_SIZE_BYTES, _READ_UNCOMMITTED, topics))
            ((_, ((_, error, *_, data),)),) = answer.topics
            return None if error else _held_by(MemoryRecords(data))
        except (kafka.KafkaError, OSError, TimeoutError):
            return None


class _Held(NamedTuple):
    """The offsets of one answer that transactions hold."""

    offsets: list[int]
    """The ascending offsets of transactions' markers and records, aborted ones included."""
    end: int
    """The offset after the last batch."""

    def missing(self, first: int, end: int) -> Iterator[Stretch]:
        """The stretches of [first, end) that no transaction holds."""
        begin = bisect_left(self.offsets, first)
        for offset in (*self.offsets[begin : bisect_left(self.offsets, end)], end):
            if first < offset:
                yield Stretch(first, offset)
            first = offset + 1


def _held_by(batches: MemoryRecords) -> _Held | None:
    """None without a batch: there are records after each gap, so that nothing at all says nothing."""
    offsets: list[int] = []
    end = 0
    while batches.has_next():
        batch = batches.next_batch()
        end = batch.next_offset
        if batch.is_control_batch:
            offsets += range(batch.base_offset, end)
        elif batch.is_transactional:
            offsets += (record.offset for record in batch)
    return _Held(offsets, end) if end else None
