"""The records of one experiment, read from the log page by page, partitions merged by time.

                spine      e1 ──── e4 ─────────── e9
    log  ─►     tasks          e2 ──── e5 ─ e6             ─►  page: e1 e2 e3 e4, next = where each partition stands
                weights           e3 ────────────── e7

The order within a partition is the log's; across partitions it is by time, for people.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.daemon.http.views.event_json import view, view_unread
from rftd.daemon.http.views.event_page import EventPage, EventView
from rftd.ops import limits
from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import CodecError, UsageError
from rftd.streams.events.catalogue import definitions
from rftd.streams.log.deadletters import decode_ours, head_of
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import EVENTS, Partition, may_hold

SCANNED_RECORDS: Final = 20_000
"""The most records that are looked at for one page: a stream is shared, and few may belong to the experiment."""
SCANNED_BACK_RECORDS: Final = 100_000
"""The most records that are looked at for the newest events. Only their heads are decoded."""
_FETCH_RECORDS: Final = 128
_PREFIX: Final = "rftd."
"""The beginning of every stream's name, left out of cursors."""


def partitions_of(experiment: UUID, types: tuple[str, ...] = ()) -> list[Partition]:
    """The partitions that may hold events of an experiment. Raises UsageError for a type that matches none."""
    known = {definition.name: definition for definition in definitions()}
    streams = set()
    for wanted in types:
        found = [known[name] for name in known if matches(name, (wanted,))]
        if not found:
            raise UsageError(f"no event type {wanted!r}", field="type", fix="use one of " + ", ".join(known))
        streams |= {definition.stream for definition in found} | (
            {partition.stream for partition in EVENTS} if any(definition.anywhere for definition in found) else set()
        )
    chosen = [partition for partition in EVENTS if not types or partition.stream in streams]
    return [partition for partition in chosen if may_hold(partition, experiment)]


def matches(name: str, types: tuple[str, ...]) -> bool:
    """True if an event type is chosen: by its name, or by a beginning such as `experiment` or `weights.`."""
    return not types or any(name == wanted or name.startswith(wanted.rstrip(".") + ".") for wanted in types)


def encode_cursor(positions: Mapping[Partition, int]) -> str:
    """Positions as an opaque text: per stream the offsets of its partitions; what is missing stands at 0."""
    offsets: dict[str, list[int]] = {}
    for (stream, number), offset in positions.items():
        if offset:
            known = offsets.setdefault(stream.removeprefix(_PREFIX), [])
            known.extend([0] * (number + 1 - len(known)))
            known[number] = offset
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(offsets, order="sorted")).decode().rstrip("=")


def decode_cursor(text: str) -> dict[Partition, int]:
    """The positions of a text. Raises UsageError."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        offsets = msgpack_decoder(dict[str, list[int]]).decode(data)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise UsageError("no cursor of this daemon", field="after", fix="use `next` of an earlier page") from None
    positions = {
        Partition(_PREFIX + stream, number): offset
        for stream, known in offsets.items()
        for number, offset in enumerate(known)
    }
    # A cursor is a caller's text: an offset beyond 62 bits would overflow the backend's integers.
    if any(partition not in EVENTS or not 0 <= offset < 1 << 62 for partition, offset in positions.items()):
        raise UsageError("the cursor names a place that does not exist", field="after", fix="begin without --after")
    return positions


class EventPager:
    """Reads pages of one experiment's events."""

    def __init__(self, log: EventLog, experiment: UUID, *, types: tuple[str, ...] = (), full: bool = False) -> None:
        self._log = log
        self._experiment = experiment
        self._types = types
        self._full = full
        self._partitions = partitions_of(experiment, types)

    async def page(self, start: Mapping[Partition, int], *, limit: int) -> EventPage:
        """A page of at most `limit` events from `start` on."""
        positions = {partition: start.get(partition, 0) for partition in self._partitions}
        merge = _Merge(self._log, positions, self._mine)
        found = await merge.take(limit)
        items = [self._view(record) for record in found]
        return EventPage(items=items, next=encode_cursor(merge.positions), more=not merge.at_head)

    async def before_the_end(
        self, count: int, *, until_ns: Callable[[], Awaitable[int]] | None = None
    ) -> dict[Partition, int]:
        """The positions from which on there are `count` events; more of them are not looked for than 100,000 records
        hold, however few those are.

        If these hold none, the last ones before `until_ns` are looked for: others may have written any number of
        records since the experiment did.
        """
        heads = await self._log.heads()
        ends = {each: heads[each].next_offset for each in self._partitions if each in heads}
        start = await self._before(ends, count)
        if start == ends and until_ns is not None:
            last_ns = await until_ns()
            ends = {each: await _end_at(self._log, each, end, last_ns) for each, end in ends.items()}
            start = await self._before(ends, count)
        return start

    async def _before(self, ends: Mapping[Partition, int], count: int) -> dict[Partition, int]:
        """The positions from which on there are `count` events below `ends`; those of `ends` where nothing is found."""
        tails = [_Tail(self._log, each, end, self._mine) for each, end in ends.items()]
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
        return start

    async def follow(self, start: Mapping[Partition, int], *, limit: int, wait_s: float) -> EventPage:
        """A page of at most `limit` events; without any, the call waits up to `wait_s` for a first one."""
        page = await self.page(start, limit=limit)
        if page.items or page.more or wait_s <= 0:
            return page
        reached = decode_cursor(page.next)
        subscription = self._log.subscribe({partition: reached.get(partition, 0) for partition in self._partitions})
        try:
            # The record may be another experiment's; then the page below is empty, and the caller asks again.
            await subscription.next(wait_s=wait_s, max_records=1)
        finally:
            await subscription.close()
        return await self.page(decode_cursor(page.next), limit=limit)

    def _view(self, record: Record) -> EventView:
        try:
            return view(decode_ours(record), full=self._full)
        except CodecError as error:
            return view_unread(record, error)

    def _mine(self, record: Record) -> Head | None:
        """The record's attributes if it is wanted. A record whose attributes cannot be read is of no experiment."""
        head = head_of(record)
        wanted = head is not None and head.experiment == self._experiment and matches(head.type, self._types)
        return head if wanted else None


async def _end_at(log: EventLog, partition: Partition, end: int, until_ns: int) -> int:
    """An offset from which on the partition's records are younger than `until_ns`; not the first such one, but near."""
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
    """The place of a wanted record."""

    time_ns: int
    offset: int


class _Tail:
    """One partition, read from its end backwards, block by block."""

    def __init__(self, log: EventLog, partition: Partition, head: int, mine: Callable[[Record], Head | None]) -> None:
        self.partition = partition
        self.before = head
        """The records from here on were looked at."""
        self.wanted: list[_EventPlace] = []
        """The wanted records that were not taken yet, the newest last."""
        self._log = log
        self._mine = mine

    async def fill(self) -> int:
        """Looks further back until there is something wanted, or nothing left; the number of records looked at."""
        scanned = 0
        while not self.wanted and self.before > 0 and scanned < SCANNED_RECORDS:
            end = self.before
            self.before = max(0, end - _FETCH_RECORDS)
            scanned += end - self.before
            at = self.before
            while at < end:
                size_bytes = limits.MIB
                read = await self._log.read(self.partition, at, max_records=end - at, max_size_bytes=size_bytes)
                # What the log no longer holds is passed over: the next one that it holds may lie behind the block.
                within = [record for record in read if record.offset < end]
                heads = [(self._mine(record), record.offset) for record in within]
                self.wanted += [_EventPlace(head.time_ns, offset) for head, offset in heads if head is not None]
                if len(within) < len(read) or not read:
                    break
                at = read[-1].offset + 1
        return scanned


class _Merge:
    """Several partitions as one sequence by time. `positions` are those that were passed, wanted or not."""

    def __init__(self, log: EventLog, positions: dict[Partition, int], mine: Callable[[Record], Head | None]) -> None:
        self.positions = positions
        self.at_head = False
        self._log = log
        self._mine = mine
        self._queues: dict[Partition, list[Record]] = {}
        self._read_to = dict(positions)
        self._scanned = 0

    async def take(self, limit: int) -> list[Record]:
        """The next wanted records: fewer than `limit` at the head of the log, or when enough were looked at."""
        heap: list[tuple[int, Partition, int]] = []
        for partition in self.positions:
            await self._push(heap, partition)
        found: list[Record] = []
        while heap and len(found) < limit and self._scanned < SCANNED_RECORDS:
            _, partition, _ = heapq.heappop(heap)
            record = self._queues[partition].pop()
            self.positions[partition] = record.offset + 1
            if self._mine(record) is not None:
                found.append(record)
            await self._push(heap, partition)
        self.at_head = not heap
        return found

    async def _push(self, heap: list[tuple[int, Partition, int]], partition: Partition) -> None:
        """Puts the partition's next wanted record on the heap; unwanted ones are passed over at once."""
        queue = self._queues.setdefault(partition, [])
        while self._scanned < SCANNED_RECORDS:
            if not queue:
                read = await self._log.read(
                    partition,
                    self._read_to[partition],
                    max_records=_FETCH_RECORDS,
                    max_size_bytes=limits.MIB,
                )
                if not read:
                    return
                self._read_to[partition] = read[-1].offset + 1
                # Reversed, so that the next record is popped from the end, which costs nothing.
                queue.extend(reversed(read))
            head = self._mine(queue[-1])
            if head is not None:
                heapq.heappush(heap, (head.time_ns, partition, queue[-1].offset))
                return
            self.positions[partition] = queue.pop().offset + 1
            self._scanned += 1
        # Looked at enough: this page ends before the end of the log. The entry sorts behind every record's time and
        # keeps the heap from running empty, which would read as the head of the log.
        heapq.heappush(heap, (1 << 63, partition, -1))
