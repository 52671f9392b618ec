"""The newest part of a log, on the log's event loop: heads, a small ring of records, and the subscriptions to wake."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from rftd.ops import limits
from rftd.ops.errors import LogFullError
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition

_EMPTY: Final = Mark(0, GENESIS)
"""The head of a partition without records."""
_RECORD_SIZE_BYTES: Final = 400
"""Memory of the objects around one record's bytes, counted because most records have fewer bytes."""


class Tail:
    """Heads of all partitions, followers to wake, and the newest records up to `ring_size_bytes` of memory.

    Followers near the head are served from the ring: many followers cost a single write and no read. Used on a single
    event loop only.
    """

    def __init__(self, heads: Mapping[Partition, Mark], ring_size_bytes: int) -> None:
        self._heads: Heads = dict(heads)
        self._limit = ring_size_bytes
        self._size = 0
        self._order: deque[Record] = deque()
        self._ring: dict[Partition, dict[int, Record]] = {}
        self._followers: dict[Partition, set[asyncio.Event]] = {}

    @property
    def heads(self) -> Heads:
        """A copy of the heads: next offset and last chain of every partition with records."""
        return dict(self._heads)

    def head(self, partition: Partition) -> Mark:
        """Returns the head of one partition; offset 0 and `GENESIS` for a partition without records."""
        return self._heads.get(partition, _EMPTY)

    def advance(self, records: Iterable[Record], heads: Mapping[Partition, Mark]) -> None:
        """Adds committed records and wakes followers; `heads` are the new heads of the grown partitions."""
        for record in records:
            self._order.append(record)
            self._size += len(record.head) + len(record.value) + _RECORD_SIZE_BYTES
            ring = self._ring.get(record.partition)
            if ring is None:
                ring = self._ring[record.partition] = {}
            ring[record.offset] = record
        while self._size > self._limit:
            oldest = self._order.popleft()
            self._size -= len(oldest.head) + len(oldest.value) + _RECORD_SIZE_BYTES
            self._ring[oldest.partition].pop(oldest.offset, None)
        self._heads.update(heads)
        # After the heads: a woken follower compares positions with heads, and would sleep again on old heads.
        for partition in heads:
            for event in self._followers.get(partition, ()):
                event.set()

    def forget(self, partition: Partition, before_offset: int) -> None:
        """Drops records below the new start of a truncated partition from memory."""
        # `_order` keeps truncated records until the normal eviction, and counts the bytes: both are corrected together
        # there.
        ring = self._ring.get(partition, {})
        for offset in [offset for offset in ring if offset < before_offset]:
            del ring[offset]

    def drop(self, partition: Partition, offsets: Iterable[int]) -> None:
        """Drops records with rewritten values from memory, so that they are read from the file."""
        ring = self._ring.get(partition, {})
        for offset in offsets:
            ring.pop(offset, None)

    def recent(self, partition: Partition, start: int, max_records: int, max_size_bytes: int) -> list[Record] | None:
        """Returns records from `start` on if memory has the first of them; [] at the head; None if they have to be
        read.
        """
        if start >= self.head(partition).next_offset:
            return []
        ring = self._ring.get(partition)
        record = ring.get(start) if ring else None
        if ring is None or record is None:
            return None
        records: list[Record] = []
        size = 0
        # The run ends at the first offset missing in the ring: a dropped record is read from the log.
        while record is not None and len(records) < max_records:
            size += len(record.head) + len(record.value)
            if records and size > max_size_bytes:
                break
            records.append(record)
            start += 1
            record = ring.get(start)
        return records

    def follow(self, partitions: Sequence[Partition], event: asyncio.Event) -> None:
        """Registers `event` to be set whenever one of `partitions` grows."""
        for partition in partitions:
            self._followers.setdefault(partition, set()).add(event)

    def unfollow(self, partitions: Sequence[Partition], event: asyncio.Event) -> None:
        """Unregisters an event registered by `follow`. Idempotent."""
        for partition in partitions:
            self._followers.get(partition, set()).discard(event)

    def wake_all(self) -> None:
        """Wakes every follower, for example because the log closes."""
        for events in self._followers.values():
            for event in events:
                event.set()


RETRY_FULL_S: Final = 0.5
"""Pause in seconds before another read while the disk is full."""


class TailedLog(Protocol):
    """The parts of a log used by a subscription: the tail, and reads."""

    @property
    def tail(self) -> Tail: ...

    async def read(
        self, partition: Partition, start: int, *, max_records: int, max_size_bytes: int
    ) -> list[Record]: ...


class TailSubscription:
    """A `Subscription` woken by the log's `Tail`; every call of `next` serves the partitions in turn."""

    def __init__(self, source: TailedLog, positions: Mapping[Partition, int]) -> None:
        self._source = source
        self._positions = dict(positions)
        self._partitions = list(self._positions)
        self._turn = 0
        self._grown = asyncio.Event()
        source.tail.follow(self._partitions, self._grown)

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Offset of the next record to return, by partition."""
        return dict(self._positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """Returns the next records, waiting at most `wait_s` seconds; see `Subscription.next`."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            self._grown.clear()  # before reading: later records set the event again, so no record is slept over
            wake_at = deadline
            try:
                records, positions = await self._collect(max_records)
            except LogFullError:
                # SQLite cannot even read while its shared-memory file cannot grow: nothing has arrived, for now.
                records = []
                wake_at = min(deadline, asyncio.get_running_loop().time() + RETRY_FULL_S)
            if records:
                self._positions.update(positions)  # no await between here and the return: cancelling loses nothing
                return records
            try:
                async with asyncio.timeout_at(wake_at):
                    await self._grown.wait()
            except TimeoutError:
                if wake_at == deadline:
                    return []

    async def close(self) -> None:
        """Ends the subscription."""
        self._source.tail.unfollow(self._partitions, self._grown)

    async def _collect(self, max_records: int) -> tuple[list[Record], dict[Partition, int]]:
        """Returns the available records, partition after partition, each call starting at the next partition."""
        collected: list[Record] = []
        positions: dict[Partition, int] = {}
        room_bytes = limits.FETCH_SIZE_BYTES
        tail = self._source.tail
        count = len(self._partitions)
        first = self._turn  # else a busy partition at the front would starve the later ones
        for step in range(count):
            partition = self._partitions[(first + step) % count]
            start = self._positions[partition]
            head = tail.head(partition).next_offset
            if start >= head:
                continue
            room = max_records - len(collected)
            if room <= 0 or (collected and room_bytes <= 0):
                break
            batch = await self._source.read(partition, start, max_records=room, max_size_bytes=room_bytes)
            self._turn = (first + step + 1) % count
            if not batch:  # all of it was truncated
                self._positions[partition] = head
                continue
            collected.extend(batch)
            positions[partition] = batch[-1].offset + 1
            room_bytes -= sum(len(record.head) + len(record.value) for record in batch)
        return collected, positions
