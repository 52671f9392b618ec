"""`KafkaLog`: an `EventLog` on a Kafka cluster that many processes share.

append ─► Room (bounded) ─► a Lane per partition: batch, idempotent producer, acks=all ─► acknowledgement
read   ◄─ Tail's ring ◄─ Tailing: one consumer for all followers ◄─┐
       ◄─ Fetcher: anything older ◄────────────────────────────────┴─ Kafka
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, UnreachableError
from rftd.ops.ids import Ids
from rftd.streams.kafka.connect import arguments, quiet, translate
from rftd.streams.kafka.direct import FEW_RECORDS, Direct
from rftd.streams.kafka.fetcher import Fetcher
from rftd.streams.kafka.gaps import Gaps
from rftd.streams.kafka.lane import Lane
from rftd.streams.kafka.partitions import Names, Offsets
from rftd.streams.kafka.producers import Part, Producers, Slice
from rftd.streams.kafka.records import Duplicates, IdWindow, key_of
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.subscription import KafkaSubscription
from rftd.streams.kafka.tailing import Pressure, Tailing, raise_head
from rftd.streams.kafka.topics import ensure_topics
from rftd.streams.log.admission import Room, admit
from rftd.streams.log.chain import GENESIS, Heads, Mark, check_mark, different
from rftd.streams.log.envelope import Draft, Position, Record, Stretch
from rftd.streams.log.log import HeldBack
from rftd.streams.log.newest import Newest
from rftd.streams.log.tail import Tail
from rftd.streams.log.topics import EVERY_PARTITION, TRUTH, Partition

_logger = logging.getLogger("rftd.kafka")
APPEND_TIMEOUT_S: Final = 60.0
"""An append is tried this long before it raises UnreachableError."""
ACKNOWLEDGED_IDS: Final = 100_000
"""The identities that this process remembers of what it appended: a retry of one of them sends nothing."""
CLOSE_TIMEOUT_S: Final = 10.0
CLOSE_FAILING_TIMEOUT_S: Final = 1.0
TAIL_PATIENCE_S: Final = 0.5
"""A read waits this long for the tail to bring a record; to fetch it costs a busy process more than to wait."""


class KafkaLog:
    """An `EventLog` on Kafka; made by `open`, used on the event loop that opened it."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self.failure: RftdError | None = None
        """The error of the last append, for readiness; None while appends work."""
        self._settings = settings
        self._clock = clock
        self._names = Names(settings.prefix)
        self._tail = Tail({}, limits.LOG_RING_SIZE_BYTES)
        self._duplicates = Duplicates()
        self._pressure = Pressure(limits.LOG_RING_SIZE_BYTES // 2, clock)
        self._offsets = Offsets(settings, self._names)
        self._gaps = Gaps(self._names, self._offsets)
        self._fetcher = Fetcher(settings, self._names, self._offsets, self._duplicates, self._gaps, clock)
        self._direct = Direct(self._names, self._offsets, self._duplicates)
        self.chains = self._direct.chains  # see `ManyChains`
        self._tailing = Tailing(
            settings, self._names, self._offsets, self._tail, self._duplicates, self._gaps, self._pressure, clock
        )
        self._producers = Producers(settings)
        self._room = Room(limits.APPEND_QUEUE_RECORDS, limits.APPEND_QUEUE_SIZE_BYTES)
        self._lanes: dict[Partition, Lane] = {}
        self._acknowledged: Newest[bytes, Position] = Newest(ACKNOWLEDGED_IDS)
        self._waiting: dict[bytes, Part] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, settings: KafkaSettings, *, clock: Clock, ids: Ids) -> Self:
        """The log on that cluster; topics that are missing are created.

        Raises UnreachableError if no broker answers, ConfigError for credentials, rights, TLS or too old a broker,
        ConflictError for topics that cannot hold this log.
        """
        quiet()
        await ensure_topics(settings)
        log = cls(settings, clock)
        await log._offsets.start()
        log._start(log._tailing.run(), log._tailing.fail)
        return log

    @property
    def tail(self) -> Tail:
        """Known heads, followers and newest records."""
        return self._tail

    @property
    def held_back(self) -> HeldBack | None:
        """See `SharedLog.held_back`."""
        return self._tailing.held_back(self._clock.monotonic_s())

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        self._check_open()
        size = admit(drafts)
        if not drafts:
            return []
        await self._room.reserve(len(drafts), size)
        try:
            self._check_open()  # again: it may have been closed while this call waited for room
            places = self._enqueue(drafts)
        except BaseException:
            self._room.release(len(drafts), size)
            raise
        slices = {id(part[0]): part[0] for part in places if not isinstance(part, Position)}
        # Given back when the drafts are gone, not when the caller is: those of one that was cancelled are still queued.
        waiting = asyncio.gather(*(slice_.done for slice_ in slices.values()), return_exceptions=True)
        waiting.add_done_callback(lambda _: self._room.release(len(drafts), size))
        await asyncio.shield(waiting)  # what is queued is sent, whether or not its caller stays
        for slice_ in slices.values():
            slice_.done.result()
        return [part if isinstance(part, Position) else part[0].position(part[1]) for part in places]

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        self._check_open()
        await self._tailing.follow([partition])
        if start >= self._tail.head(partition).next_offset:
            end = (await self._offsets.ends([partition]))[partition]
            if start >= end:
                return []
            # Another process appended: its records may be read before the tail brings them.
            raise_head(self._tail, partition, Mark(end, GENESIS))
        return await self.read_known(partition, start, max_records, max_size_bytes)

    async def lost(self, partition: Partition, first: int, end: int) -> int:
        """The number of offsets in [first, end) that neither a repetition nor a transaction accounts for."""
        return await self._gaps.lost(partition, first, end, self._duplicates)

    async def read_known(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int, *, primed: bool = False
    ) -> list[Record]:
        """`read` below the known head: [] only if everything from `start` to that head is gone or repeated."""
        head = self._tail.head(partition).next_offset
        while start < head:
            records = await self._raw(partition, start, head, max_records, max_size_bytes, primed)
            if not records:
                return []
            if kept := self._duplicates.without(records):
                return kept
            start = records[-1].offset + 1  # all were repetitions: an empty list would say that the end is reached
        return []

    def subscribe(self, positions: Mapping[Partition, int]) -> KafkaSubscription:
        self._check_open()
        return KafkaSubscription(self, self._tailing, self._pressure, positions)

    async def heads(self) -> Heads:
        self._check_open()
        ends = {p: end for p, end in (await self._offsets.ends(EVERY_PARTITION)).items() if end}
        # The cluster knows the ends, and only the last record its digest: it is fetched where the tail has none for it.
        known = {p: self._tail.head(p) for p in ends}
        asked = {p: end - 1 for p, end in ends.items() if known[p].next_offset != end or known[p].chain == GENESIS}
        found = await self._fetcher.last(asked) if asked else {}
        heads: Heads = {}
        for partition, end in ends.items():
            if partition not in asked:
                heads[partition] = known[partition]
            else:
                record = found.get(partition) or await self._fetcher.newest(partition, end)
                heads[partition] = Mark(end, GENESIS) if record is None else Mark(record.offset + 1, record.chain)
                raise_head(self._tail, partition, heads[partition])
        return heads

    async def deleted(self) -> list[tuple[Partition, Stretch]]:
        """The records of truth that are gone: those below a partition's first one, and the gaps that readers met."""
        self._check_open()
        firsts = await self._offsets.starts(TRUTH)
        below = [(partition, Stretch(0, first)) for partition, first in firsts.items() if first]
        await self._gaps.judge()
        gaps = self._gaps.found.items()
        return sorted(below + [(partition, gap) for partition, gap in gaps if gap.end > firsts.get(partition, gap.end)])

    async def check_heads(self, remembered: Heads) -> None:
        self._check_open()
        ends = await self._offsets.ends(remembered)
        for partition, mark in remembered.items():
            head = Mark(ends[partition], mark.chain if mark.next_offset else GENESIS)
            check_mark(partition, mark, head=head, start=Mark(0, GENESIS))
        places = {partition: mark.next_offset - 1 for partition, mark in remembered.items() if mark.next_offset}
        found = await self._fetcher.last(places)
        firsts = await self._offsets.starts(places)
        for partition, offset in places.items():
            record = found.get(partition)
            truncated = record is None and offset < firsts[partition]  # on purpose: it cannot be compared
            if not truncated and (record is None or record.chain != remembered[partition].chain):
                raise different(partition, remembered[partition])

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        self._check_open()
        name = self._names.kafka(partition)
        before = min(before_offset, (await self._offsets.ends([partition]))[partition])
        if before <= (await self._offsets.starts([partition]))[partition]:
            return
        admin = AIOKafkaAdminClient(**arguments(self._settings))
        try:
            await admin.start()
            await admin.delete_records({name: RecordsToDelete(before_offset=before)})
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            raise translate(error, self._settings) from error
        finally:
            await admin.close()
        self._tail.forget(partition, before)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # Shielded: a caller that is cancelled half-way must not leave producers and consumers connected.
        await asyncio.shield(self._closing)

    async def end(self, partition: Partition) -> int:
        """The next offset, from the cluster."""
        return (await self._offsets.ends([partition]))[partition]

    async def read_back(self, partition: Partition, start: int, end: int) -> IdWindow:
        """The identities of the records in [start, end)."""
        return await self._fetcher.stretch(partition, start, end)

    def placed(self, partition: Partition, mark: Mark, parts: list[Part]) -> None:
        """Takes in the places of a lane's batch, and the new head."""
        self.failure = None
        for slice_, index in parts:
            key = slice_.keys[index]
            self._acknowledged.put(key, slice_.position(index))
            self._waiting.pop(key, None)
        raise_head(self._tail, partition, mark)

    def failing(self, error: RftdError | None) -> None:
        """Takes in the error with which appends fail; None once they work."""
        self.failure = error

    def _enqueue(self, drafts: Sequence[Draft]) -> list[Position | Part]:
        """The place of each draft, or the queued draft that will have one.

        It never waits: no other append comes in between, so equal ids of two callers meet here.
        """
        made: dict[Partition, Slice] = {}
        places: list[Position | Part] = []
        deadline_s = self._clock.monotonic_s() + APPEND_TIMEOUT_S
        for draft in drafts:
            key = key_of(draft)
            place = self._find(draft.partition, key)
            if place is None:
                slice_ = made.get(draft.partition)
                if slice_ is None:
                    slice_ = made[draft.partition] = Slice(draft.partition, deadline_s)
                place = self._waiting[key] = (slice_, slice_.add(draft, key))
            places.append(place)
        for partition, slice_ in made.items():
            slice_.done.add_done_callback(partial(self._ended, slice_))
            self._lane(partition).put(slice_)
        return places

    def _find(self, partition: Partition, key: bytes) -> Position | Part | None:
        # From what is surest to what is older: acknowledged here, under way here, read back, seen by the tail.
        known = self._acknowledged.get(key) or self._waiting.get(key)
        if known is not None:
            return known
        lane = self._lanes.get(partition)
        offset = lane.find(key) if lane is not None else None
        if offset is None:
            offset = self._tailing.find(partition, key)
        return None if offset is None else Position(partition, offset)

    def _ended(self, slice_: Slice, _: object) -> None:
        for key in slice_.keys:
            part = self._waiting.get(key)
            if part is not None and part[0] is slice_:
                del self._waiting[key]
        if not self._waiting and isinstance(self.failure, UnreachableError):
            # Given up, and nothing is left that would find out that the cluster is back; reading will.
            self.failure = None

    def _lane(self, partition: Partition) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(
                partition,
                settings=self._settings,
                names=self._names,
                producers=self._producers,
                log=self,
                clock=self._clock,
            )
            self._start(lane.run(), partial(self._lane_died, partition))
        return lane

    def _lane_died(self, partition: Partition, error: RftdError) -> None:
        """The next append begins anew; what waits is not left waiting."""
        del self._lanes[partition]
        for slice_, _ in list(self._waiting.values()):
            if slice_.partition == partition:
                slice_.fail(error)

    async def _raw(
        self, partition: Partition, start: int, head: int, max_records: int, max_size_bytes: int, primed: bool
    ) -> list[Record]:
        recent = self._tail.recent(partition, start, max_records, max_size_bytes)
        if recent is not None:
            return recent
        if self._tailing.due(partition, start):
            recent = await self._from_tail(partition, start, max_records, max_size_bytes)
            if recent is not None:
                return recent
        if max_records <= FEW_RECORDS and not primed:
            found = await self._direct.read(partition, start, min(head, start + max_records), max_size_bytes)
            if found:
                return found
        return await self._fetcher.read(partition, start, head, max_records, max_size_bytes, primed=primed)

    async def _from_tail(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int
    ) -> list[Record] | None:
        """The records that the tail brings within `TAIL_PATIENCE_S`; None if it does not."""
        grown = asyncio.Event()
        self._tail.follow([partition], grown)
        try:
            async with asyncio.timeout(TAIL_PATIENCE_S):
                while (recent := self._tail.recent(partition, start, max_records, max_size_bytes)) is None:
                    if not self._tailing.due(partition, start):
                        break  # it came, and newer ones took its place already
                    grown.clear()
                    await grown.wait()
            return recent
        except TimeoutError:
            return None
        finally:
            self._tail.unfollow([partition], grown)

    def _start(self, work: Coroutine[Any, Any, None], died: Callable[[RftdError], None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop holds its tasks weakly: one that nobody else holds may be collected
        task.add_done_callback(partial(self._stopped, died))

    def _stopped(self, died: Callable[[RftdError], None], task: asyncio.Future[None]) -> None:
        """A task ends only when the log closes; a bug in it must not leave others waiting."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "the Kafka log failed", "exception": error})
            self.failure = translate(error, self._settings)
            died(self.failure)

    async def _close(self) -> None:
        with suppress(TimeoutError):
            # What the cluster does not take now, it will hardly take in a moment.
            async with asyncio.timeout(CLOSE_TIMEOUT_S if self.failure is None else CLOSE_FAILING_TIMEOUT_S):
                await _all_done(part[0] for part in self._waiting.values())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # After the lanes ended: one that runs could still place what is failed here.
        for part in list(self._waiting.values()):
            part[0].fail(self._closed())
        parts = (self._producers, self._tailing, self._fetcher, self._offsets)
        await _all_ended(asyncio.ensure_future(part.stop()) for part in parts)
        self._tail.wake_all()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closed()

    def _closed(self) -> UnreachableError:
        return UnreachableError("the log is closed", where=f"Kafka at {self._settings.bootstrap}", fix="open it again")


async def _all_done(slices: Iterable[Slice]) -> None:
    futures = {slice_.done for slice_ in slices}
    if futures:
        await asyncio.wait(futures)


async def _all_ended(endings: Iterable[asyncio.Future[None]]) -> None:
    """Returns in bounded time, and never raises: aiokafka hands on the cancellations of its own tasks."""
    done, late = await asyncio.wait(list(endings), timeout=CLOSE_TIMEOUT_S)
    for ending in late:
        ending.cancel()
    for ending in done:
        if not ending.cancelled() and (error := ending.exception()) is not None:
            _logger.debug("a connection ended with %r", error)
