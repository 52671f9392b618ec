"""`Fetcher`: reads at any offset by one consumer, which continues where a partition's last read ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import LogLossError, UnreachableError
from rftd.streams.kafka.connect import arguments, translate
from rftd.streams.kafka.gaps import Gaps
from rftd.streams.kafka.partitions import Names, Offsets, assign_paused
from rftd.streams.kafka.records import Duplicates, IdWindow, records_of
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition

TIMEOUT_S: Final = 30.0
"""Seconds after the start of a wait from which a poll without any record fails the read."""
PRIMED_RECORDS: Final = 2000
"""Number of records before its start in which a subscription looks for ids repeated later."""
_MAX_POLL_RECORDS: Final = limits.FETCH_RECORDS
"""Maximum number of records of one poll of the consumer."""
_SKIP_RECORDS: Final = 256
"""Maximum number of records skipped by reading on; beyond that, a seek is cheaper."""
_MIN_POLL_RECORDS: Final = 64
"""Records of one poll for a read of fewer: the others wait for the next read."""
_BACK: Final = 16
"""Factor between two steps back in the search for a partition's last record."""
_STREAMS: Final = 8
"""Maximum number of partitions read sequentially at a time, each with a buffer."""
_BUFFER_SIZE_BYTES: Final = 4 * limits.MIB
"""Size of a stream's waiting records from which aiokafka fetches no more for it, and maximum size of a partition's part
of one fetch.
"""


class _Stream:
    """One partition read sequentially, with records received and not returned yet."""

    def __init__(self, start: int) -> None:
        """Begins at the offset `start`, with nothing received."""
        self.window = IdWindow()
        self.next = start
        """The offset after the last record returned."""
        self.due = start
        """The offset after the last record received."""
        self.records: deque[Record] = deque()
        self.size_bytes = 0

    def put(self, records: list[Record]) -> None:
        """Adds received records."""
        self.records.extend(records)
        self.size_bytes += sum(len(record.head) + len(record.value) for record in records)

    def take(self, max_records: int, max_size_bytes: int) -> list[Record]:
        """Removes and returns the next records within both limits, at least one."""
        records: list[Record] = []
        size = 0
        while self.records and len(records) < max_records:
            size += len(self.records[0].head) + len(self.records[0].value)
            if records and size > max_size_bytes:
                break
            records.append(self.records.popleft())
        if records:
            self.next = records[-1].offset + 1
            self.size_bytes -= sum(len(record.head) + len(record.value) for record in records)
        return records

    def skip(self, below: int) -> int:
        """Drops received records below the offset `below`; returns their number."""
        dropped = 0
        while self.records and self.records[0].offset < below:
            record = self.records.popleft()
            self.next = record.offset + 1
            self.size_bytes -= len(record.head) + len(record.value)
            dropped += 1
        return dropped


class Fetcher:
    """Reads records from any offset, one call at a time; raises the errors of `rftd.streams.kafka.connect`."""

    def __init__(
        self,
        settings: KafkaSettings,
        names: Names,
        offsets: Offsets,
        duplicates: Duplicates,
        gaps: Gaps,
        clock: Clock,
    ) -> None:
        """Creates the reads; the first of them connects."""
        self._settings = settings
        self._names = names
        self._offsets = offsets
        self._duplicates = duplicates
        self._gaps = gaps
        self._clock = clock
        self._turn = asyncio.Lock()
        self._streams: dict[Partition, _Stream] = {}
        self._newest: dict[Partition, tuple[int, Record | None]] = {}
        self._consumer: AIOKafkaConsumer | None = None

    async def read(
        self, partition: Partition, start: int, end: int, max_records: int, max_size_bytes: int, *, primed: bool = False
    ) -> list[Record]:
        """Returns records from `start` on, at least one if [start, end) has one, and perhaps later ones already
        received; empty if all of [start, end) are truncated or unreadable.

        With `primed`, repetitions of the `PRIMED_RECORDS` records before `start` are recognised.
        """
        async with self._turn:
            stream = self._streams.get(partition)
            if stream is None or not stream.next <= start <= stream.next + _SKIP_RECORDS:
                # The dictionary is in order of use: its first stream has been unused for longest.
                while len(self._streams) >= _STREAMS:
                    self._end(next(iter(self._streams)))
                stream = await self._begin(partition, start, PRIMED_RECORDS if primed else 0)
            else:
                self._streams[partition] = self._streams.pop(partition)  # the newest is last
                await self._pass(partition, stream, start)
            await self._fill({partition: end}, min(_MAX_POLL_RECORDS, max(max_records, _MIN_POLL_RECORDS)))
            records = stream.take(max_records, max_size_bytes)
            if stream.size_bytes < _BUFFER_SIZE_BYTES and stream.next < end:
                self._resume(partition)
            elif stream.next >= end and not stream.records:
                self._pause(partition)
            return records

    async def stretch(self, partition: Partition, start: int, end: int) -> IdWindow:
        """Reads the records of [start, end), and returns a window with the ids of all of them."""
        async with self._turn:
            stream = await self._begin(partition, start)
            # One poll may bring records beyond the end, whose ids must not push out those asked for.
            stream.window = IdWindow(end - start + _MAX_POLL_RECORDS)
            while stream.next < end:
                await self._fill({partition: end})
                if not stream.take(limits.APPEND_RECORDS, limits.FETCH_SIZE_BYTES):
                    break
            self._end(partition)
            return stream.window

    async def last(self, offsets: Mapping[Partition, int]) -> dict[Partition, Record]:
        """Returns the records at these offsets by partition; partitions whose offset is truncated, or taken by a
        transaction's marker, are absent.
        """
        records: dict[Partition, Record] = {}
        async with self._turn:
            firsts = await self._offsets.starts(offsets)
            retained = {partition: offset for partition, offset in offsets.items() if offset >= firsts[partition]}
            for partition, offset in retained.items():
                await self._begin(partition, offset, first=firsts[partition])
            if retained:
                await self._fill({partition: offset + 1 for partition, offset in retained.items()})
            for partition, offset in retained.items():
                record = next(iter(self._streams[partition].records), None)
                if record is not None and record.offset == offset:
                    records[partition] = record
                self._end(partition)
        return records

    async def newest(self, partition: Partition, end: int) -> Record | None:
        """Returns the last record of a partition whose end is a transaction's marker; None if there is no record."""
        # Remembered: callers of `heads` ask often, and a partition may end with a marker for days.
        if self._newest.get(partition, (0, None))[0] != end:
            self._newest[partition] = end, await self._look_back(partition, end)
        return self._newest[partition][1]

    async def _look_back(self, partition: Partition, end: int) -> Record | None:
        """Returns the last readable record below `end`; None if there is none. Reads further and further back."""
        async with self._turn:
            first = (await self._offsets.starts([partition]))[partition]
            count = 1
            while end - count >= first:
                # Further back each time: an aborted transaction may be longer than its marker.
                count = min(_BACK * count, end - first)
                stream = await self._begin(partition, end - count, first=first)
                last_record: Record | None = None
                while stream.next < end:
                    await self._fill({partition: end})
                    if not (records := stream.take(limits.APPEND_RECORDS, limits.FETCH_SIZE_BYTES)):
                        break
                    last_record = records[-1]
                self._end(partition)
                if last_record is not None or count == end - first:
                    return last_record
            return None

    async def stop(self) -> None:
        """Disconnects from the cluster, if connected."""
        if self._consumer is not None:
            await self._consumer.stop()

    async def _begin(
        self, partition: Partition, start: int, primed_records: int = 0, first: int | None = None
    ) -> _Stream:
        """Begins a stream with its next record the first at or above `start`; the ids of up to `primed_records` records
        before are remembered.
        """
        await self._started()
        if first is None:
            first = (await self._offsets.starts([partition]))[partition]
        begin = max(first, start - primed_records)
        stream = _Stream(begin)
        self._end(partition)
        self._streams[partition] = stream
        self._seek(partition, begin)
        await self._pass(partition, stream, start)
        return stream

    async def _pass(self, partition: Partition, stream: _Stream, start: int) -> None:
        """Reads past the records below `start`."""
        while stream.next < start:
            await self._fill({partition: start})
            if not stream.skip(start):
                break
        stream.next = max(start, stream.next)

    async def _fill(self, ends: Mapping[Partition, int], at_once: int = _MAX_POLL_RECORDS) -> None:
        """Returns once each of these streams has a record or has read everything below its end."""
        assert self._consumer is not None
        deadline_s = self._clock.monotonic_s() + TIMEOUT_S
        for partition in ends:
            self._resume(partition)
        while waiting := await self._without_records(ends):
            for partition in waiting:
                self._resume(partition)
            try:
                batches = await self._consumer.getmany(timeout_ms=100, max_records=at_once)
            except kafka.OffsetOutOfRangeError as error:
                await self._out_of_range(error)
                continue
            except (kafka.KafkaError, OSError) as error:
                raise translate(error, self._settings) from error
            for name, messages in batches.items():
                partition = self._names.ours(name)
                stream = self._streams.get(partition)
                if stream is not None:
                    stream.due = self._gaps.look(partition, stream.due, messages)
                    stream.put(records_of(partition, messages, stream.window, self._duplicates))
                    if stream.size_bytes >= _BUFFER_SIZE_BYTES:
                        self._pause(partition)
            await self._gaps.judge()
            if not batches and self._clock.monotonic_s() > deadline_s:
                raise UnreachableError(
                    f"Kafka sent nothing of {waiting[0]} for {TIMEOUT_S:.0f} s",
                    where=f"Kafka at {self._settings.bootstrap}",
                    fix="check that its brokers run and lead the partition",
                )

    async def _without_records(self, ends: Mapping[Partition, int]) -> list[Partition]:
        """Returns the streams without a record and not yet at their end."""
        empty = [partition for partition in ends if not self._streams[partition].records]
        return [partition for partition in empty if await self._at(partition) < ends[partition]]

    async def _out_of_range(self, error: kafka.OffsetOutOfRangeError) -> None:
        """Continues at the first retained record; an offset above the end means lost records."""
        for name, offset in error.args[0].items():
            partition = self._names.ours(name)
            first = (await self._offsets.starts([partition]))[partition]
            if offset > first:
                end = (await self._offsets.ends([partition]))[partition]
                raise LogLossError(
                    f"{partition}@{offset - 1} was there and is gone: the log ends before {end}",
                    where=f"{partition}@{end}",
                    fix="the cluster lost records: restore it from a replica, then run `rftd verify`",
                )
            if (stream := self._streams.get(partition)) is not None:
                stream.due = max(stream.due, first)
            self._seek(partition, first)

    async def _at(self, partition: Partition) -> int:
        """Returns the offset at which the consumer continues in a partition."""
        assert self._consumer is not None
        return int(await self._consumer.position(self._names.kafka(partition)))

    async def _started(self) -> None:
        """Connects the consumer, with every partition paused, unless it is connected."""
        if self._consumer is not None:
            return
        consumer = AIOKafkaConsumer(
            group_id=None,  # no consumer group: a rebalance would take partitions away in the middle of a read
            enable_auto_commit=False,
            # The end of a partition is then its last stable offset, here as in `Offsets.ends`: records of other
            # programs in open or aborted transactions are never read.
            isolation_level="read_committed",
            auto_offset_reset="none",  # an offset out of range is raised: continuing elsewhere would skip records
            fetch_max_wait_ms=20,  # a read waits below a known end, so the records exist
            max_partition_fetch_bytes=_BUFFER_SIZE_BYTES,
            fetch_max_bytes=4 * _BUFFER_SIZE_BYTES,
            **arguments(self._settings),
        )
        try:
            await consumer.start()
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            await consumer.stop()
            raise translate(error, self._settings) from error
        assign_paused(consumer, self._names)
        self._consumer = consumer

    def _seek(self, partition: Partition, offset: int) -> None:
        """Moves the consumer to an offset."""
        assert self._consumer is not None
        self._consumer.seek(self._names.kafka(partition), offset)

    def _resume(self, partition: Partition) -> None:
        """Lets the consumer read a partition."""
        assert self._consumer is not None
        self._consumer.resume(self._names.kafka(partition))

    def _pause(self, partition: Partition) -> None:
        """Keeps the consumer from reading a partition."""
        assert self._consumer is not None
        self._consumer.pause(self._names.kafka(partition))

    def _end(self, partition: Partition) -> None:
        """Ends a partition's stream, if it has one; received records are dropped."""
        if self._streams.pop(partition, None) is not None:
            self._pause(partition)
