"""`Tailing`: one consumer per process, reading the newest records of all followed partitions into memory.

`Pressure` estimates the bytes not yet read by followers: while they fill half of that memory, the partitions with most
of them pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import LogLossError, RftdError, UnreachableError
from rftd.streams.kafka.connect import arguments, translate
from rftd.streams.kafka.fetcher import PRIMED_RECORDS
from rftd.streams.kafka.gaps import Gaps
from rftd.streams.kafka.partitions import Names, Offsets, assign_paused
from rftd.streams.kafka.records import Duplicates, IdWindow, records_of
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.chain import GENESIS, Mark
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import HeldBack
from rftd.streams.log.tail import Tail
from rftd.streams.log.topics import Partition

PATIENCE_S: Final = 2.0
"""Seconds for which a partition waits for its slowest follower; after that, the follower reads from the
cluster itself.
"""


class Pressure:
    """How far each follower has read, and which partitions pause for slow followers."""

    def __init__(self, room_bytes: int, clock: Clock) -> None:
        """Begins without a follower; partitions pause while more than `room_bytes` are unread."""
        self._room_bytes = room_bytes
        self._clock = clock
        self._followers: dict[int, Mapping[Partition, int]] = {}
        self._average_bytes: dict[Partition, float] = {}
        self._paused_at_s: dict[Partition, float] = {}
        self._ignored: dict[Partition, int] = {}

    def read(self, follower: int, positions: Mapping[Partition, int]) -> None:
        """Records how far a follower has read, from which its unread bytes are estimated."""
        self._followers[follower] = positions

    def gone(self, follower: int) -> None:
        """Removes a follower; its unread records no longer count."""
        self._followers.pop(follower, None)

    def slowest(self, partition: Partition, floor: int = 0) -> int | None:
        """Returns the lowest next offset of a partition's followers, at least `floor`; None without followers."""
        offsets = (positions[partition] for positions in self._followers.values() if partition in positions)
        return min((offset for offset in offsets if offset >= floor), default=None)

    def began(self, partition: Partition, offset: int) -> None:
        """Records the offset at which the tail began; followers behind it read from the cluster first."""
        self._ignored[partition] = offset

    def arrived(self, records: Sequence[Record]) -> None:
        """Records the sizes of records added to the tail."""
        partition = records[0].partition
        average = sum(len(record.head) + len(record.value) for record in records) / len(records)
        # A moving average: unread bytes are only estimated, for the ring forgets records before their followers read
        # them.
        self._average_bytes[partition] = 0.7 * self._average_bytes.get(partition, average) + 0.3 * average

    def changes(self, positions: Mapping[Partition, int]) -> Iterator[tuple[Partition, bool]]:
        """Yields partitions to be paused (True) or resumed (False) now; `positions` are the tail's next offsets."""
        now_s = self._clock.monotonic_s()
        unread = {partition: self._unread_bytes(partition, at) for partition, at in positions.items()}
        crowded = sum(unread.values()) > self._room_bytes
        for partition, size in unread.items():
            since_s = self._paused_at_s.get(partition)
            if since_s is None:
                if crowded and size * 2 * len(unread) > self._room_bytes:
                    self._paused_at_s[partition] = now_s
                    yield partition, True
            elif not crowded or size == 0 or now_s - since_s > PATIENCE_S:
                if now_s - since_s > PATIENCE_S:
                    self._ignored[partition] = positions[partition]
                del self._paused_at_s[partition]
                yield partition, False

    def pauses(self, partition: Partition) -> bool:
        """True while the partition is paused."""
        return partition in self._paused_at_s

    def _unread_bytes(self, partition: Partition, at: int) -> float:
        # A follower ignored for slowness counts again once past the offset of the decision.
        """Estimates the bytes below `at` not yet read by the partition's slowest follower."""
        floor = self._ignored.get(partition, 0)
        slowest = self.slowest(partition, floor)
        if slowest is None:
            return 0.0
        return max(0, at - slowest) * self._average_bytes.get(partition, 0.0)


WAIT_MS: Final = 500
"""Longest wait of the broker for new records."""
POLL_MS: Final = 200
"""Longest wait of one poll."""
RETRY_S: Final = 0.5
"""Pause after a failed poll."""
MOMENT_S: Final = 2.0
"""Seconds for which an open transaction is not reported: most end sooner."""
_MAX_POLL_RECORDS: Final = limits.FETCH_RECORDS
"""Maximum number of records of one poll."""


class Tailing:
    """The consumer reading newest records of followed partitions into `tail`; `run` is its task."""

    def __init__(
        self,
        settings: KafkaSettings,
        names: Names,
        offsets: Offsets,
        tail: Tail,
        duplicates: Duplicates,
        gaps: Gaps,
        pressure: Pressure,
        clock: Clock,
    ) -> None:
        """Creates the tail without a connection; `run` connects it."""
        self.failed: RftdError | None = None
        """Error that ended the tail for good: lost or damaged records, refused rights, or a bug. None normally."""
        self._settings = settings
        self._names = names
        self._offsets = offsets
        self._tail = tail
        self._duplicates = duplicates
        self._gaps = gaps
        self._pressure = pressure
        self._clock = clock
        self._windows: dict[Partition, IdWindow] = {}
        self._next: dict[Partition, int] = {}
        self._flowing: set[Partition] = set()
        self._transactions: dict[Partition, HeldBack] = {}
        self._turn = asyncio.Lock()
        self._began = asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None

    def due(self, partition: Partition, offset: int) -> bool:
        """True if the tail is about to read the record at this offset; a partition newly followed joins only after the
        present poll.
        """
        next_ = self._next.get(partition)
        flows = partition in self._flowing and not self._pressure.pauses(partition)
        return next_ is not None and next_ <= offset and flows

    def held_back(self, now_s: float) -> HeldBack | None:
        """Returns the records unreadable for longest because of an open transaction; None if there are none for over
        `MOMENT_S`.
        """
        oldest = min(self._transactions.values(), key=lambda held: held.since_s, default=None)
        return oldest if oldest is not None and now_s - oldest.since_s > MOMENT_S else None

    def find(self, partition: Partition, key: bytes) -> int | None:
        """Returns the offset of an id among the newest records of a followed partition; None if absent."""
        window = self._windows.get(partition)
        return window.find(key) if window is not None else None

    async def follow(self, partitions: Iterable[Partition]) -> None:
        """Adds partitions, and waits until the tail knows their ends."""
        if self.failed is not None:
            raise self.failed
        if all(partition in self._next for partition in partitions):
            return
        async with self._turn:
            new = [partition for partition in partitions if partition not in self._next]
            if not new:
                return
            consumer = await self._started()
            ends = await self._offsets.ends(new)
            starts = await self._offsets.starts(new)
            for partition in new:
                # From below the end: the first records seen by followers may repeat earlier ones.
                begin = max(starts[partition], ends[partition] - PRIMED_RECORDS)
                self._windows[partition] = IdWindow()
                consumer.seek(self._names.kafka(partition), begin)
                consumer.resume(self._names.kafka(partition))
                self._next[partition] = begin
                self._pressure.began(partition, begin)
                raise_head(self._tail, partition, Mark(ends[partition], GENESIS))
            self._began.set()

    async def run(self) -> None:
        """Reads until cancelled, reconnecting after outages of the brokers."""
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
                await asyncio.sleep(RETRY_S)  # an immediate error, again and again, must not fill the loop

    async def stop(self) -> None:
        """Disconnects from the cluster. Idempotent."""
        if self._consumer is not None:
            await self._consumer.stop()

    async def _step(self) -> None:
        """Pauses and resumes partitions for slow followers, then reads new records into the tail."""
        assert self._consumer is not None
        for partition, paused in self._pressure.changes(self._next):
            change = self._consumer.pause if paused else self._consumer.resume
            change(self._names.kafka(partition))
        batches = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=_MAX_POLL_RECORDS)
        for name, messages in batches.items():
            partition = self._names.ours(name)
            due = self._gaps.look(partition, self._next[partition], messages)
            records = records_of(partition, messages, self._windows[partition], self._duplicates)
            last_record = records[-1]
            self._next[partition] = due
            self._flowing.add(partition)
            self._pressure.arrived(records)
            # An append of this process may have raised the head above the records of this poll: a head never goes down.
            head = self._tail.head(partition)
            mark = Mark(last_record.offset + 1, last_record.chain)
            self._tail.advance(records, {partition: max(mark, head, key=lambda known: known.next_offset)})
        await self._gaps.judge()
        self._look_for_transactions()
        if batches:
            await asyncio.sleep(0)  # a long catching up leaves turns to other tasks

    def _look_for_transactions(self) -> None:
        """Notes the partitions with a last stable offset below their end: the records in between are unreadable."""
        assert self._consumer is not None
        for partition in self._next:
            name = self._names.kafka(partition)
            stable, end = self._consumer.last_stable_offset(name), self._consumer.highwater(name)
            previous = self._transactions.pop(partition, None)
            if stable is not None and end is not None and 0 <= stable < end:
                unchanged = previous is not None and previous.first == stable
                since_s = previous.since_s if previous is not None and unchanged else self._clock.monotonic_s()
                self._transactions[partition] = HeldBack(partition, stable, end, since_s)

    async def _out_of_range(self, error: kafka.OffsetOutOfRangeError) -> None:
        """Handles an offset out of range: the partition was truncated, or has lost records."""
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
        """Ends the tail with an error, raised by every subscription from then on."""
        self.failed = error
        self._tail.wake_all()

    async def _started(self) -> AIOKafkaConsumer:
        """Returns the consumer, connected on first use."""
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
    """Informs followers of `tail` that the partition reaches at least to `mark`."""
    if mark.next_offset > tail.head(partition).next_offset:
        tail.advance((), {partition: mark})
