"""The records of one experiment, read from the log page by page, partitions merged by time.

                spine      e1 ──── e4 ─────────── e9
    log  ─►     tasks          e2 ──── e5 ─ e6             ─►  page: e1 e2 e3 e4, next = the offset of each partition
                weights           e3 ────────────── e7

The order within a partition is the log's; across partitions it is by time, for people.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.daemon.http.views.event_json import view, view_unread
from rftd.daemon.http.views.event_page import EventPage, EventView
from rftd.ops import limits
from rftd.ops.errors import CodecError, UsageError
from rftd.storage.queries.cursor import CursorError, cursor_of, key_of
from rftd.streams.events.catalogue import definitions
from rftd.streams.log.deadletters import decode_ours, head_of
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import EVENTS, Partition, may_hold

SCANNED_RECORDS: Final = 20_000
"""Maximum number of records read for one page: streams are shared, and few records may belong to the experiment."""
SCANNED_BACK_RECORDS: Final = 100_000
"""Maximum number of records read for the newest events. Only their heads are decoded."""
_FETCH_RECORDS: Final = 128
"""Number of records read back at a time from the end of a partition."""
_ORDER: Final = "time"
"""The one order of events, in cursors."""


def partitions_of(experiment: UUID, types: tuple[str, ...] = ()) -> list[Partition]:
    """Returns the partitions possibly holding events of an experiment. Raises UsageError for an unknown type."""
    definitions_by_name = {definition.name: definition for definition in definitions()}
    streams = set()
    for prefix in types:
        matching = [definitions_by_name[name] for name in definitions_by_name if matches(name, (prefix,))]
        if not matching:
            raise UsageError(
                f"no event type {prefix!r}", field="type", fix="use one of " + ", ".join(definitions_by_name)
            )
        streams |= {definition.stream for definition in matching} | (
            {partition.stream for partition in EVENTS} if any(definition.anywhere for definition in matching) else set()
        )
    chosen = [partition for partition in EVENTS if not types or partition.stream in streams]
    return [partition for partition in chosen if may_hold(partition, experiment)]


def matches(name: str, types: tuple[str, ...]) -> bool:
    """True if an event type is chosen: by its name, or by a prefix such as `experiment` or `weights.`."""
    return not types or any(
        name == chosen_type or name.startswith(chosen_type.rstrip(".") + ".") for chosen_type in types
    )


def encode_cursor(experiment: UUID, positions: Mapping[Partition, int]) -> str:
    """Returns the cursor of an experiment's events behind these positions; partitions at offset 0 are left out."""
    offsets = [(number, positions.get(partition, 0)) for number, partition in enumerate(EVENTS)]
    key = [integer for number, offset in offsets if offset for integer in (number, offset)]
    return cursor_of(f"events of {experiment}", _ORDER, tuple(key))


def decode_cursor(experiment: UUID, cursor: str) -> dict[Partition, int]:
    """Returns the positions in a cursor of the experiment's events. Raises CursorError for any other text."""
    key = key_of(cursor, f"events of {experiment}", _ORDER, None)
    numbers = key[::2]
    offsets = key[1::2]
    # A cursor is a caller's text: an offset beyond 62 bits would overflow the backend's integers.
    if len(numbers) != len(offsets) or not all(
        0 <= int(number) < len(EVENTS) and 0 <= int(offset) < 1 << 62
        for number, offset in zip(numbers, offsets, strict=True)
    ):
        raise CursorError("the cursor is damaged", field="cursor")
    return {EVENTS[int(number)]: int(offset) for number, offset in zip(numbers, offsets, strict=True)}


class EventPager:
    """Reads pages of one experiment's events, filtered by type and merged by time."""

    def __init__(self, log: EventLog, experiment: UUID, *, types: tuple[str, ...] = (), full: bool = False) -> None:
        self._log = log
        self._experiment = experiment
        self._types = types
        self._full = full
        self._partitions = partitions_of(experiment, types)

    async def page(self, start: Mapping[Partition, int], *, limit: int) -> EventPage:
        """Returns a page of at most `limit` events from `start` on."""
        positions = {partition: start.get(partition, 0) for partition in self._partitions}
        merge = _Merge(self._log, positions, self._mine)
        return await self._taken(merge, limit, begin=positions)

    async def page_before(self, end: Mapping[Partition, int], *, limit: int) -> EventPage:
        """Returns the last events before `end`, at most `limit`; none where other experiments fill the searched part,
        while `previous` leads on.
        """
        ends = {partition: end.get(partition, 0) for partition in self._partitions}
        start, searched = await self._before(ends, limit)
        begin = searched if start == ends else start
        merge = _Merge(self._log, dict(begin), self._mine, ends)
        page = await self._taken(merge, limit, begin=begin)
        return msgspec.structs.replace(page, more=True)

    async def _taken(self, merge: _Merge, limit: int, *, begin: Mapping[Partition, int]) -> EventPage:
        """Returns a page of at most `limit` merged events, with cursors of the neighbouring pages."""
        begin = dict(begin)
        event_views = [self._view(record) for record in await merge.take(limit)]
        return EventPage(
            items=event_views,
            next=encode_cursor(self._experiment, merge.positions),
            more=not merge.at_head,
            previous=encode_cursor(self._experiment, begin) if any(begin.values()) else None,
        )

    async def before_the_end(
        self, count: int, *, until_ns: Callable[[], Awaitable[int]] | None = None
    ) -> dict[Partition, int]:
        """Returns the positions before the last `count` events, or before fewer: at most 100,000 records are searched.

        If these hold no event, the last ones before `until_ns` are searched: other experiments may have written any
        number of records since.
        """
        heads = await self._log.heads()
        ends = {partition: heads[partition].next_offset for partition in self._partitions if partition in heads}
        start, _ = await self._before(ends, count)
        if start == ends and until_ns is not None:
            last_ns = await until_ns()
            ends = {
                partition: await _offset_after(self._log, partition, end, last_ns) for partition, end in ends.items()
            }
            start, _ = await self._before(ends, count)
        return start

    async def _before(
        self, ends: Mapping[Partition, int], count: int
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Returns the positions before the last `count` events below `ends` (the offsets of `ends` if none is found),
        and the positions of the earliest records read.
        """
        tails = [_Tail(self._log, partition, end, self._mine) for partition, end in ends.items()]
        start = dict(ends)
        scanned = 0
        heap: list[tuple[int, int]] = []
        for number, tail in enumerate(tails):
            scanned += await tail.fill()
            if tail.wanted:
                heapq.heappush(heap, (-tail.wanted[-1].time_ns, number))
        while heap and count > 0 and scanned < SCANNED_BACK_RECORDS:
            number = heapq.heappop(heap)[1]
            tail = tails[number]
            start[tail.partition] = tail.wanted.pop().offset
            count -= 1
            scanned += await tail.fill()
            if tail.wanted:
                heapq.heappush(heap, (-tail.wanted[-1].time_ns, number))
        return start, {tail.partition: tail.before for tail in tails}

    async def follow(self, start: Mapping[Partition, int], *, limit: int, wait_s: float) -> EventPage:
        """Returns a page of at most `limit` events; without any, waits up to `wait_s` seconds for a first one."""
        page = await self.page(start, limit=limit)
        if page.items or page.more or wait_s <= 0:
            return page
        reached = decode_cursor(self._experiment, page.next)
        subscription = self._log.subscribe({partition: reached.get(partition, 0) for partition in self._partitions})
        try:
            # The record may belong to another experiment; then the page below is empty, and the caller asks again.
            await subscription.next(wait_s=wait_s, max_records=1)
        finally:
            await subscription.close()
        return await self.page(reached, limit=limit)

    def _view(self, record: Record) -> EventView:
        """Returns an event for people, or the head of a record with an unreadable payload."""
        try:
            return view(decode_ours(record), full=self._full)
        except CodecError as error:
            return view_unread(record, error)

    def _mine(self, record: Record) -> Head | None:
        """Returns the attributes of a matching record; else None. An unreadable record belongs to no experiment."""
        head = head_of(record)
        is_wanted = head is not None and head.experiment == self._experiment and matches(head.type, self._types)
        return head if is_wanted else None


async def _offset_after(log: EventLog, partition: Partition, end: int, until_ns: int) -> int:
    """Returns an offset near the first of the partition's records younger than `until_ns`, not before it."""
    first = 0
    while end - first > _FETCH_RECORDS:
        middle = (first + end) // 2
        read = await log.read(partition, middle, max_records=_FETCH_RECORDS, max_size_bytes=limits.MIB)
        head = next(filter(None, map(head_of, read)), None)  # foreign records have no time
        if head is not None and head.time_ns <= until_ns:
            first = middle
        else:
            end = middle
    return end


class _EventPlace(NamedTuple):
    """Time and offset of a matching record."""

    time_ns: int
    """Time of the record, Unix time in nanoseconds."""
    offset: int
    """Offset of the record in its partition."""


class _Tail:
    """One partition, read from its end backwards, block by block."""

    def __init__(self, log: EventLog, partition: Partition, head: int, mine: Callable[[Record], Head | None]) -> None:
        self.partition = partition
        self.before = head
        """Records from this offset on have been searched."""
        self.wanted: list[_EventPlace] = []
        """Matching records not used yet, the newest last."""
        self._log = log
        self._mine = mine

    async def fill(self) -> int:
        """Searches back until matching records are found or none are left; returns the number of records read."""
        scanned = 0
        while not self.wanted and self.before > 0 and scanned < SCANNED_RECORDS:
            end = self.before
            self.before = max(0, end - _FETCH_RECORDS)
            scanned += end - self.before
            at = self.before
            while at < end:
                size_bytes = limits.MIB
                read = await self._log.read(self.partition, at, max_records=end - at, max_size_bytes=size_bytes)
                # Records missing in the log are skipped: the next existing one may lie behind the block.
                within = [record for record in read if record.offset < end]
                heads = [(self._mine(record), record.offset) for record in within]
                self.wanted += [_EventPlace(head.time_ns, offset) for head, offset in heads if head is not None]
                if len(within) < len(read) or not read:
                    break
                at = read[-1].offset + 1
        return scanned


class _Merge:
    """Several partitions as one sequence by time; `positions` counts passed records, matching or not."""

    def __init__(
        self,
        log: EventLog,
        positions: dict[Partition, int],
        mine: Callable[[Record], Head | None],
        ends: Mapping[Partition, int] = MappingProxyType({}),
    ) -> None:
        """Records at and behind an offset of `ends` are left out."""
        self.positions = positions
        self.at_head = False
        self._ends = ends
        self._log = log
        self._mine = mine
        self._queues: dict[Partition, list[Record]] = {}
        self._read_to = dict(positions)
        self._scanned = 0

    async def take(self, limit: int) -> list[Record]:
        """Returns the next matching records: fewer than `limit` at the head of the log, or after reading enough."""
        heap: list[tuple[int, Partition, int]] = []
        for partition in self.positions:
            await self._push(heap, partition)
        matching: list[Record] = []
        while heap and len(matching) < limit and self._scanned < SCANNED_RECORDS:
            _, partition, _ = heapq.heappop(heap)
            record = self._queues[partition].pop()
            self.positions[partition] = record.offset + 1
            if self._mine(record) is not None:
                matching.append(record)
            await self._push(heap, partition)
        self.at_head = not heap
        return matching

    async def _push(self, heap: list[tuple[int, Partition, int]], partition: Partition) -> None:
        """Puts the partition's next matching record on the heap; other records are skipped at once."""
        queue = self._queues.setdefault(partition, [])
        while self._scanned < SCANNED_RECORDS:
            if not queue:
                read = await self._log.read(
                    partition,
                    self._read_to[partition],
                    max_records=_FETCH_RECORDS,
                    max_size_bytes=limits.MIB,
                )
                if partition in self._ends:
                    read = [record for record in read if record.offset < self._ends[partition]]
                if not read:
                    return
                self._read_to[partition] = read[-1].offset + 1
                # Reversed, so that the next record is popped from the end at no cost.
                queue.extend(reversed(read))
            head = self._mine(queue[-1])
            if head is not None:
                heapq.heappush(heap, (head.time_ns, partition, queue[-1].offset))
                return
            self.positions[partition] = queue.pop().offset + 1
            self._scanned += 1
        # Enough records read: this page ends before the end of the log. The entry sorts behind every record's time and
        # keeps the heap from running empty, which would mean the head of the log.
        heapq.heappush(heap, (1 << 63, partition, -1))
