"""`KafkaLog`: an `EventLog` on a Kafka cluster shared by many processes.

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
"""Logger of the Kafka backend."""
APPEND_TIMEOUT_S: Final = 60.0
"""Seconds of retries before an append raises UnreachableError."""
ACKNOWLEDGED_IDS: Final = 100_000
"""Number of appended ids remembered by this process: a retry of such a draft sends nothing."""
CLOSE_TIMEOUT_S: Final = 10.0
"""Time limit in seconds for queued appends at the close, and then for the end of all connections."""
CLOSE_FAILING_TIMEOUT_S: Final = 1.0
"""Time limit in seconds for queued appends at the close while appends fail."""
TAIL_PATIENCE_S: Final = 0.5
"""Seconds for which a read waits for the tail to bring a record, before fetching it separately."""


class KafkaLog:
    """An `EventLog` on Kafka; created by `open`, used on the event loop of that call."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        """Creates the log without a connection; `open` connects it."""
        self.failure: RftdError | None = None
        """Error of failing appends, or of a task ended by a bug, for the readiness probe; None while all is well."""
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
        """Opens the log on the cluster of `settings`; missing topics are created.

        Raises UnreachableError if no broker answers, ConfigError for credentials, rights, TLS or too old a broker,
        ConflictError for topics unfit for this log.
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
        """Records unreadable for longest because of another program's open transaction; see `SharedLog.held_back`. None
        without any.
        """
        return self._tailing.held_back(self._clock.monotonic_s())

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends drafts, and returns their positions; see `EventLog.append`."""
        self._check_open()
        size = admit(drafts)
        if not drafts:
            return []
        await self._room.reserve(len(drafts), size)
        try:
            self._check_open()  # again: it may have been closed while this call waited for room
            outcomes = self._enqueue(drafts)
        except BaseException:
            self._room.release(len(drafts), size)
            raise
        slices = {id(outcome[0]): outcome[0] for outcome in outcomes if not isinstance(outcome, Position)}
        # Released when the drafts are sent, not when the caller leaves: the drafts of a cancelled caller are still
        # queued.
        waiting = asyncio.gather(*(slice_.done for slice_ in slices.values()), return_exceptions=True)
        waiting.add_done_callback(lambda _: self._room.release(len(drafts), size))
        await asyncio.shield(waiting)  # queued drafts are sent, whether or not their caller stays
        for slice_ in slices.values():
            slice_.done.result()
        return [outcome if isinstance(outcome, Position) else outcome[0].position(outcome[1]) for outcome in outcomes]

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Reads records of a partition; see `EventLog.read`."""
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
        """Returns the number of offsets in [first, end) whose records are missing: neither repetitions nor taken by
        transactions.
        """
        return await self._gaps.lost(partition, first, end, self._duplicates)

    async def read_known(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int, *, primed: bool = False
    ) -> list[Record]:
        """Reads records from `start` on, at least one if there is one below the known head; empty only if everything
        from `start` to the head was truncated or is repeated.

        With `primed`, repetitions of records shortly before `start` are recognised.
        """
        head = self._tail.head(partition).next_offset
        while start < head:
            records = await self._read_raw(partition, start, head, max_records, max_size_bytes, primed)
            if not records:
                return []
            if unrepeated := self._duplicates.without(records):
                return unrepeated
            start = records[-1].offset + 1  # all were repetitions: an empty list would mean the end of the partition
        return []

    def subscribe(self, positions: Mapping[Partition, int]) -> KafkaSubscription:
        """Returns a subscription from these offsets on; see `EventLog.subscribe`."""
        self._check_open()
        return KafkaSubscription(self, self._tailing, self._pressure, positions)

    async def heads(self) -> Heads:
        """Returns the present heads of all partitions, from the cluster."""
        self._check_open()
        ends = {p: end for p, end in (await self._offsets.ends(EVERY_PARTITION)).items() if end}
        # The cluster knows the ends, and only the last record its digest: it is fetched if the tail has no chain for
        # the end.
        known_heads = {p: self._tail.head(p) for p in ends}
        unknown_offsets = {
            p: end - 1
            for p, end in ends.items()
            if known_heads[p].next_offset != end or known_heads[p].chain == GENESIS
        }
        records = await self._fetcher.last(unknown_offsets) if unknown_offsets else {}
        heads: Heads = {}
        for partition, end in ends.items():
            if partition not in unknown_offsets:
                heads[partition] = known_heads[partition]
            else:
                record = records.get(partition) or await self._fetcher.newest(partition, end)
                heads[partition] = Mark(end, GENESIS) if record is None else Mark(record.offset + 1, record.chain)
                raise_head(self._tail, partition, heads[partition])
        return heads

    async def deleted(self) -> list[tuple[Partition, Stretch]]:
        """Returns the missing records of streams that must not lose any: below a partition's first offset, and in gaps
        met by readers.
        """
        self._check_open()
        firsts = await self._offsets.starts(TRUTH)
        below = [(partition, Stretch(0, first)) for partition, first in firsts.items() if first]
        await self._gaps.judge()
        gaps = self._gaps.found.items()
        return sorted(below + [(partition, gap) for partition, gap in gaps if gap.end > firsts.get(partition, gap.end)])

    async def check_heads(self, remembered: Heads) -> None:
        """Raises LogLossError unless the log has every remembered head; see `EventLog.check_heads`."""
        self._check_open()
        ends = await self._offsets.ends(remembered)
        for partition, mark in remembered.items():
            head = Mark(ends[partition], mark.chain if mark.next_offset else GENESIS)
            check_mark(partition, mark, head=head, start=Mark(0, GENESIS))
        offsets = {partition: mark.next_offset - 1 for partition, mark in remembered.items() if mark.next_offset}
        records = await self._fetcher.last(offsets)
        firsts = await self._offsets.starts(offsets)
        for partition, offset in offsets.items():
            record = records.get(partition)
            truncated = record is None and offset < firsts[partition]  # on purpose: it cannot be compared
            if not truncated and (record is None or record.chain != remembered[partition].chain):
                raise different(partition, remembered[partition])

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records of a partition below an offset; see `EventLog.truncate`."""
        self._check_open()
        name = self._names.kafka(partition)
        end_offset = min(before_offset, (await self._offsets.ends([partition]))[partition])
        if end_offset <= (await self._offsets.starts([partition]))[partition]:
            return
        admin = AIOKafkaAdminClient(**arguments(self._settings))
        try:
            await admin.start()
            await admin.delete_records({name: RecordsToDelete(before_offset=end_offset)})
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            raise translate(error, self._settings) from error
        finally:
            await admin.close()
        self._tail.forget(partition, end_offset)

    async def close(self) -> None:
        """Completes queued appends, and disconnects; see `EventLog.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # Shielded: a caller cancelled half-way must not leave producers and consumers connected.
        await asyncio.shield(self._closing)

    async def end(self, partition: Partition) -> int:
        """Returns the next offset of a partition, from the cluster."""
        return (await self._offsets.ends([partition]))[partition]

    async def read_back(self, partition: Partition, start: int, end: int) -> IdWindow:
        """Returns the ids of the records in [start, end)."""
        return await self._fetcher.stretch(partition, start, end)

    def placed(self, partition: Partition, mark: Mark, parts: list[Part]) -> None:
        """Records the positions of a batch's drafts, and the partition's new head `mark`; called by lanes."""
        self.failure = None
        for slice_, index in parts:
            key = slice_.keys[index]
            self._acknowledged.put(key, slice_.position(index))
            self._waiting.pop(key, None)
        raise_head(self._tail, partition, mark)

    def failing(self, error: RftdError | None) -> None:
        """Sets `failure`: the error of failing appends, or None once they succeed again."""
        self.failure = error

    def _enqueue(self, drafts: Sequence[Draft]) -> list[Position | Part]:
        """Returns for each draft its position, or the queued draft that will get one.

        Never waits: no other append comes in between, so equal ids of two callers meet here.
        """
        slices: dict[Partition, Slice] = {}
        outcomes: list[Position | Part] = []
        deadline_s = self._clock.monotonic_s() + APPEND_TIMEOUT_S
        for draft in drafts:
            key = key_of(draft)
            outcome = self._find(draft.partition, key)
            if outcome is None:
                slice_ = slices.get(draft.partition)
                if slice_ is None:
                    slice_ = slices[draft.partition] = Slice(draft.partition, deadline_s)
                outcome = self._waiting[key] = (slice_, slice_.add(draft, key))
            outcomes.append(outcome)
        for partition, slice_ in slices.items():
            slice_.done.add_done_callback(partial(self._ended, slice_))
            self._lane(partition).put(slice_)
        return outcomes

    def _find(self, partition: Partition, key: bytes) -> Position | Part | None:
        # From the surest source to the oldest: acknowledged here, under way here, read back, seen by the tail.
        """Returns the position of a draft with this id, or its place in the queue; None for a new one."""
        outcome = self._acknowledged.get(key) or self._waiting.get(key)
        if outcome is not None:
            return outcome
        lane = self._lanes.get(partition)
        offset = lane.find(key) if lane is not None else None
        if offset is None:
            offset = self._tailing.find(partition, key)
        return None if offset is None else Position(partition, offset)

    def _ended(self, slice_: Slice, _: object) -> None:
        """Forgets the queued drafts of an ended append; without any queued draft, an UnreachableError in `failure` is
        cleared too.
        """
        for key in slice_.keys:
            queued = self._waiting.get(key)
            if queued is not None and queued[0] is slice_:
                del self._waiting[key]
        if not self._waiting and isinstance(self.failure, UnreachableError):
            # Failed, and no append is left to notice the cluster's return; reading will.
            self.failure = None

    def _lane(self, partition: Partition) -> Lane:
        """Returns the lane of a partition, started on first use."""
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
        """Ends a failed lane and its waiting drafts; the next append begins a new one."""
        del self._lanes[partition]
        for slice_, _ in list(self._waiting.values()):
            if slice_.partition == partition:
                slice_.fail(error)

    async def _read_raw(
        self, partition: Partition, start: int, head: int, max_records: int, max_size_bytes: int, primed: bool
    ) -> list[Record]:
        """Reads records from the newest ones in memory, or from the cluster."""
        recent = self._tail.recent(partition, start, max_records, max_size_bytes)
        if recent is not None:
            return recent
        if self._tailing.due(partition, start):
            recent = await self._from_tail(partition, start, max_records, max_size_bytes)
            if recent is not None:
                return recent
        if max_records <= FEW_RECORDS and not primed:
            records = await self._direct.read(partition, start, min(head, start + max_records), max_size_bytes)
            if records:
                return records
        return await self._fetcher.read(partition, start, head, max_records, max_size_bytes, primed=primed)

    async def _from_tail(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int
    ) -> list[Record] | None:
        """Returns the records brought by the tail within `TAIL_PATIENCE_S`; None if it does not bring them."""
        grown = asyncio.Event()
        self._tail.follow([partition], grown)
        try:
            async with asyncio.timeout(TAIL_PATIENCE_S):
                while (recent := self._tail.recent(partition, start, max_records, max_size_bytes)) is None:
                    if not self._tailing.due(partition, start):
                        break  # it came, and newer ones already took its slot in the ring
                    grown.clear()
                    await grown.wait()
            return recent
        except TimeoutError:
            return None
        finally:
            self._tail.unfollow([partition], grown)

    def _start(self, work: Coroutine[Any, Any, None], died: Callable[[RftdError], None]) -> None:
        """Starts a background task; `died` is called with the error of a task that ends by one."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop holds its tasks weakly: one without another holder may be collected
        task.add_done_callback(partial(self._stopped, died))

    def _stopped(self, died: Callable[[RftdError], None], task: asyncio.Future[None]) -> None:
        """Handles the end of a task: tasks end only when the log closes, and a bug in one must not leave callers
        waiting.
        """
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "the Kafka log failed", "exception": error})
            self.failure = translate(error, self._settings)
            died(self.failure)

    async def _close(self) -> None:
        """Waits for queued appends, at most `CLOSE_TIMEOUT_S` seconds, then ends all tasks and connections."""
        with suppress(TimeoutError):
            # Drafts not accepted by the cluster now will hardly be accepted in a moment.
            async with asyncio.timeout(CLOSE_TIMEOUT_S if self.failure is None else CLOSE_FAILING_TIMEOUT_S):
                await _all_done(queued[0] for queued in self._waiting.values())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # After the lanes ended: a running one could still place the drafts failed here.
        for queued in list(self._waiting.values()):
            queued[0].fail(self._closed())
        services = (self._producers, self._tailing, self._fetcher, self._offsets)
        await _all_ended(asyncio.ensure_future(service.stop()) for service in services)
        self._tail.wake_all()

    def _check_open(self) -> None:
        """Raises UnreachableError if the log is closed or closing."""
        if self._closing is not None:
            raise self._closed()

    def _closed(self) -> UnreachableError:
        """Returns the error for uses of a closed log."""
        return UnreachableError("the log is closed", where=f"Kafka at {self._settings.bootstrap}", fix="open it again")


async def _all_done(slices: Iterable[Slice]) -> None:
    """Waits until all of these appends are acknowledged or refused."""
    futures = {slice_.done for slice_ in slices}
    if futures:
        await asyncio.wait(futures)


async def _all_ended(endings: Iterable[asyncio.Future[None]]) -> None:
    """Waits at most `CLOSE_TIMEOUT_S` for connections to end, and never raises: aiokafka passes on the cancellations of
    its own tasks.
    """
    done, late = await asyncio.wait(list(endings), timeout=CLOSE_TIMEOUT_S)
    for ending in late:
        ending.cancel()
    for ending in done:
        if not ending.cancelled() and (error := ending.exception()) is not None:
            _logger.debug("a connection ended with %r", error)
