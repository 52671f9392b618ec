"""`TrackerFollower`: reads an experiment's spine and shows the points, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops import faults
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import UnreachableError, explain
from rftd.ops.logs import Logger
from rftd.streams.log import topics
from rftd.streams.log.chain import Heads
from rftd.streams.log.effective import effective
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.feed import Feed
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, partition_of
from rftd.workers.tracking.cursor import Cursor, CursorFile, TrackedPlace
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.points import SAMPLED_TYPES, TYPES, PointFold
from rftd.workers.tracking.samples import SampleReader
from rftd.workers.tracking.tracker import Tracker

STREAMS: Final = (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
"""The streams whose events produce points."""
GATHER_S: Final = 1.0
"""Seconds during which points accumulate: each write costs a few syncs."""
LINGER_S: Final = 5.0
"""Seconds to wait for further records after the end: a trainer finishes its step after a cancel command."""
_POLL_INTERVAL_S: Final = 1.0
"""Seconds between two reads of the log without news."""
_STOP_POLL_INTERVAL_S: Final = 0.2
"""Seconds between two checks for the request to stop."""
_MOST_POINTS: Final = 500
"""Maximum points of one write: they are stored in the cursor while being written."""
_MOST_SAMPLED_POINTS: Final = 20
"""The same maximum if some points are tables of texts."""
_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts to reach a service, or a disk with space."""
_UNREACHABLE_ERRORS: Final = (UnreachableError, OSError)
"""Errors of an unreachable service, after which the tracker is tried again."""


class TrackerFollower:
    """Runs one tracker of an experiment: reads the log, writes points, saves the cursor. If a service is away, only the
    tracker waits.
    """

    def __init__(
        self,
        log: EventLog,
        tracker: Tracker,
        file: CursorFile,
        cursor: Cursor,
        *,
        experiment: UUID,
        positions: Mapping[Partition, int],
        clock: Clock,
        logger: Logger,
        stop: asyncio.Event,
        samples: SampleReader | None = None,
        patient: bool = True,
        point: Callable[[str], None] = faults.point,
    ) -> None:
        """`positions` is the beginning of the experiment; `file` is locked by the caller; `samples` fills tables.

        Unless `patient`, an unreachable service or a full disk raises an error.
        """
        self._log = log
        self._tracker = tracker
        self._file = file
        self._cursor = cursor
        self._sure = cursor
        """The cursor last saved."""
        self._saved = _of_its_own(cursor)
        """A copy whose fold reads no further: the state for the next process."""
        self._experiment = experiment
        self._clock = clock
        self._logger = logger
        self._stop = stop
        self._patient = patient
        self._point = point
        self._fold: PointFold = cursor.fold
        """Fold that computes points from events, continued from the cursor."""
        self._samples = samples
        self._types: Final = TYPES if samples is None else SAMPLED_TYPES
        """Types of the events read."""
        self._fences = FenceView(cursor.fences)
        """Owner of each role so far, by which records of replaced owners are ignored."""
        self._points: list[Point] = []
        """Points not yet shown."""
        self._opened = False
        self._closed = False
        self._reason = ""
        """The reason last logged for a failed write."""
        self._partitions: Final = frozenset(partition_of(stream, experiment) for stream in STREAMS)
        """Partitions of the experiment's records."""
        start = {partition: positions.get(partition, 0) for partition in self._partitions}
        start |= {Partition(tracked.stream, tracked.partition): tracked.next_offset for tracked in cursor.places}
        self._feed = Feed(log.subscribe(start))
        """Records of the experiment's partitions, from the positions of the cursor on."""

    async def run(self, *, until_head: bool = False) -> None:
        """Shows points until the experiment has ended, or until `stop` is set.

        With `until_head` it also returns at the end of the log. Raises RftdError for errors not fixed by waiting, for
        example a wrong key.
        """
        try:
            if await self._write(self._cursor.pending):
                await self._follow(until_head)
                await self._make_sure()
        finally:
            await self._feed.close()
            if not self._closed:
                await asyncio.to_thread(self._tracker.close, "")

    async def _follow(self, until_head: bool) -> None:
        """Reads and writes points until the end, the head, or `stop`."""
        ended_s: float | None = None
        goals = await self._log.heads() if until_head else {}
        while not self._stop.is_set():
            reached = until_head and self._has_read(goals)
            if not reached:
                await self._gather(gather_s=0.0 if until_head else GATHER_S)
            if self._points:
                if not await self._write(self._points):
                    return
                continue
            if self._fold.ended and ended_s is None:
                ended_s = self._clock.monotonic_s()
            if until_head and not reached:
                continue
            if self._fold.ended and (until_head or self._clock.monotonic_s() - (ended_s or 0.0) >= LINGER_S):
                self._cursor = msgspec.structs.replace(self._cursor, ended=True)
                return
            if until_head:
                return

    def _has_read(self, goals: Heads) -> bool:
        """True once everything below the goals was read."""
        positions = self._feed.positions
        return all(positions.get(at, 0) >= goal.next_offset for at, goal in goals.items() if at in self._partitions)

    async def _gather(self, *, gather_s: float) -> None:
        """Reads arrived records, waiting a moment for the first record, and `gather_s` for more."""
        if await self._feed.pump(_POLL_INTERVAL_S, self._read) == 0:
            return
        if self._points and gather_s:
            await self._clock.sleep(gather_s)
        most = _MOST_POINTS if self._samples is None else _MOST_SAMPLED_POINTS
        while len(self._points) < most and await self._feed.pump(0.0, self._read):
            pass

    def _read(self, record: Record) -> None:
        """Adds the points of one record."""
        decoded = effective(record, self._fences, self._wanted)
        if decoded is not None:
            self._points += self._fold.apply(decoded)

    def _wanted(self, head: Head) -> bool:
        """True if a record's event concerns the experiment's points."""
        return head.experiment == self._experiment and head.type in self._types

    async def _write(self, points: Sequence[Point]) -> bool:
        """Shows the points, regardless of the time taken; False if stopped before."""
        if self._samples is not None:
            points = [await self._samples.with_samples(point) for point in points]
        offsets = sorted(self._feed.positions.items())
        places = tuple(TrackedPlace(partition.stream, partition.number, offset) for partition, offset in offsets)
        # Stored before they are written: after a kill the points come again, under equal numbers.
        noted = msgspec.structs.replace(
            self._cursor, places=places, fences=self._fences.owners(), fold=self._fold, pending=tuple(points)
        )
        if not await self._until_done(partial(self._attempt, noted)):
            return False
        self._points = []
        return True

    async def _attempt(self, noted: Cursor, again: bool) -> None:
        """Opens the tracker if needed, and shows the points stored in the cursor."""
        if self._tracker.sure_at_once and self._cursor is not noted:
            await self._save(noted)
        if again or not self._opened:
            await asyncio.to_thread(self._tracker.open, noted.kept)
            self._opened = True
        self._point("tracker.before_write")
        await asyncio.to_thread(self._tracker.write, noted.pending)
        self._point("tracker.before_settle")
        state = await asyncio.to_thread(partial(self._tracker.settle, surely=False))
        self._point("tracker.before_cursor")
        if state is None:
            self._cursor = msgspec.structs.replace(noted, pending=())
            # For readers of the status; the next process starts at the last saved cursor.
            await asyncio.to_thread(self._file.write, msgspec.structs.replace(self._saved, **self._progress()))
        else:
            await self._save(msgspec.structs.replace(noted, pending=(), kept=state, **self._progress()))

    async def _make_sure(self) -> None:
        """Saves everything written since the last sure moment, and the end of the run."""
        if self._cursor is self._sure:
            return
        state = await asyncio.to_thread(partial(self._tracker.settle, surely=True))
        if not self._cursor.ended or await self._leave():
            await self._save(msgspec.structs.replace(self._cursor, kept=state or {}, **self._progress()))

    async def _leave(self) -> bool:
        """Passes the experiment's end to the tracker, regardless of the time taken; False if stopped before."""
        if not await self._until_done(lambda _: asyncio.to_thread(self._tracker.close, self._fold.ended)):
            return False
        self._closed = True
        return True

    async def _until_done(self, attempt: Callable[[bool], Awaitable[None]]) -> bool:
        """Attempts until success; `attempt` receives whether an attempt has failed before. False if stopped before."""
        failures = 0
        while True:
            try:
                await attempt(failures > 0)
            except _UNREACHABLE_ERRORS as error:
                end_if_cancelled()
                if not self._patient:
                    raise
                failures += 1
                if not await self._rest(error, failures):
                    return False
            else:
                return True

    def _progress(self) -> dict[str, Any]:
        """Returns the cursor's fields of the tracker's progress."""
        return {"points": self._fold.next_number, "step": self._fold.furthest, "error": ""}

    async def _rest(self, error: Exception, failures: int) -> bool:
        """Waits before the next attempt; False if stopped meanwhile."""
        reason = explain(error)
        if reason != self._reason:
            self._reason = reason
            self._logger.warning("tracker.waiting", reason=reason)
        # The reason is for readers of the status; a full disk has no space for a reason.
        with suppress(OSError):
            await asyncio.to_thread(self._file.write, msgspec.structs.replace(self._saved, error=reason))
        deadline_s = self._clock.monotonic_s() + _DELAYS_S[min(failures, len(_DELAYS_S)) - 1]
        while not self._stop.is_set():
            if (remaining_s := deadline_s - self._clock.monotonic_s()) <= 0:
                return True
            await self._clock.sleep(min(remaining_s, _STOP_POLL_INTERVAL_S))
        return False

    async def _save(self, cursor: Cursor) -> None:
        """Writes the cursor durably."""
        await asyncio.to_thread(self._file.write, cursor)
        self._cursor = cursor
        self._sure = cursor
        self._saved = _of_its_own(cursor)


def _of_its_own(cursor: Cursor) -> Cursor:
    """Returns the cursor with a copy of the fold, as stored in the file, because the fold continues to advance."""
    fold = msgpack_decoder(PointFold).decode(msgspec.msgpack.encode(cursor.fold))
    return msgspec.structs.replace(cursor, fold=fold)
