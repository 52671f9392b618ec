"""The end of the followed partitions, read once for all followers: one consumer that fills the log's `Tail`.

A partition is followed from the first subscription or read of it until the log is closed, beginning a little below
its end so that repetitions of the newest records are recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.ops.errors import LogLossError, RftdError, UnreachableError
from rftd.streams.backends.kafka.connect import arguments, translate
from rftd.streams.backends.kafka.fetcher import PRIMED_RECORDS
from rftd.streams.backends.kafka.names import Names, assign_paused
from rftd.streams.backends.kafka.offsets import Offsets
from rftd.streams.backends.kafka.pressure import Pressure
from rftd.streams.backends.kafka.reading import Duplicates, Gaps, records_of
from rftd.streams.backends.kafka.seen import Window
from rftd.streams.backends.kafka.settings import KafkaSettings
from rftd.streams.backends.tail import Tail
from rftd.streams.chain import GENESIS, Mark
from rftd.streams.topics import Partition

WAIT_MS: Final = 500
POLL_MS: Final = 200
RETRY_S: Final = 0.5
_AT_ONCE: Final = limits.FETCH_RECORDS


class Tailing:
    """Feeds `tail`; `run` is its task."""

    def __init__(
        self,
        settings: KafkaSettings,
        names: Names,
        offsets: Offsets,
        tail: Tail,
        duplicates: Duplicates,
        gaps: Gaps,
        pressure: Pressure,
    ) -> None:
        self.failed: RftdError | None = None
        """Why nothing can be followed any more: records were lost or damaged."""
        self._settings = settings
        self._names = names
        self._offsets = offsets
        self._tail = tail
        self._duplicates = duplicates
        self._gaps = gaps
        self._pressure = pressure
        self._windows: dict[Partition, Window] = {}
        self._next: dict[Partition, int] = {}
        self._flowing: set[Partition] = set()
        self._turn = asyncio.Lock()
        self._began = asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None

    def due(self, partition: Partition, offset: int) -> bool:
        """True if the tail will bring that record in a moment. A partition joins only after the poll under way."""
        next_ = self._next.get(partition)
        flows = partition in self._flowing and not self._pressure.pauses(partition)
        return next_ is not None and next_ <= offset and flows

    def find(self, partition: Partition, key: bytes) -> int | None:
        """The first offset of an identity among the partition's newest records, if it is followed."""
        window = self._windows.get(partition)
        return window.find(key) if window is not None else None

    async def follow(self, partitions: Iterable[Partition]) -> None:
        """Returns once these partitions are followed and the tail knows their ends."""
        if self.failed is not None:
            raise self.failed
        if all(partition in self._next for partition in partitions):
            return
        async with self._turn:
            new = [partition for partition in partitions if partition not in self._next]
            if not new:
                return
            consumer = await self._started()
            ends, starts = await self._offsets.ends(new), await self._offsets.starts(new)
            for partition in new:
                begin = max(starts[partition], ends[partition] - PRIMED_RECORDS)
                self._windows[partition] = Window()
                consumer.seek(self._names.kafka(partition), begin)
                consumer.resume(self._names.kafka(partition))
                self._next[partition] = begin
                self._pressure.began(partition, begin)
                raise_head(self._tail, partition, Mark(ends[partition], GENESIS))
            self._began.set()

    async def run(self) -> None:
        """Reads until it is cancelled, through every outage of the brokers."""
        await self._began.wait()
        while self.failed is None:
            try:
                await self._step()
            except kafka.OffsetOutOfRangeError as error:
                await self._out_of_range(error)
            except (kafka.KafkaError, OSError) as error:
                translated = translate(error, self._settings)
                if not isinstance(translated, UnreachableError):
                    self.fail(translated)
                await asyncio.sleep(RETRY_S)

    async def stop(self) -> None:
        """Disconnects."""
        if self._consumer is not None:
            await self._consumer.stop()

    async def _step(self) -> None:
        assert self._consumer is not None
        for partition, paused in self._pressure.changes(self._next):
            change = self._consumer.pause if paused else self._consumer.resume
            change(self._names.kafka(partition))
        batches = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=_AT_ONCE)
        for name, messages in batches.items():
            partition = self._names.ours(name)
            due = self._gaps.look(partition, self._next[partition], messages)
            records = records_of(partition, messages, self._windows[partition], self._duplicates)
            last = records[-1]
            self._next[partition] = due
            self._flowing.add(partition)
            self._pressure.arrived(records)
            head = self._tail.head(partition)
            mark = Mark(last.offset + 1, last.chain)
            self._tail.advance(records, {partition: max(mark, head, key=lambda known: known.next_offset)})
        if batches:
            await asyncio.sleep(0)  # a long catching up leaves turns to others

    async def _out_of_range(self, error: kafka.OffsetOutOfRangeError) -> None:
        """The partition was truncated below us, or it lost records."""
        try:
            for name, offset in error.args[0].items():
                partition = self._names.ours(name)
                start = (await self._offsets.starts([partition]))[partition]
                end = (await self._offsets.ends([partition]))[partition]
                if offset > end:
                    self.fail(
                        LogLossError(
                            f"{partition}@{offset - 1} was there and is gone: the log ends before {end}",
                            where=f"{partition}@{end}",
                            fix="the cluster lost records: restore it from a replica, then run `rftd verify`",
                        )
                    )
                    return
                assert self._consumer is not None
                self._next[partition] = max(start, offset)
                self._consumer.seek(name, self._next[partition])
        except UnreachableError:
            await asyncio.sleep(RETRY_S)

    def fail(self, error: RftdError) -> None:
        """Ends the following: every subscription hears why."""
        self.failed = error
        self._tail.wake_all()

    async def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
                fetch_max_wait_ms=WAIT_MS,
                max_partition_fetch_bytes=4 * limits.MIB,
                fetch_max_bytes=16 * limits.MIB,
                **arguments(self._settings),
            )
            try:
                await consumer.start()
            except (kafka.KafkaError, OSError, TimeoutError) as error:
                await consumer.stop()
                raise translate(error, self._settings) from error
            assign_paused(consumer, self._names)
            self._consumer = consumer
        return self._consumer


def raise_head(tail: Tail, partition: Partition, mark: Mark) -> None:
    """Tells the tail's followers that the partition reaches at least to `mark`."""
    if mark.next_offset > tail.head(partition).next_offset:
        tail.advance((), {partition: mark})
