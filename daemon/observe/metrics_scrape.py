"""`Scrape`: the text of /metrics, at a bounded cost for any scrape rate: a recent reading is shown again.

The tables are read again only after a change, and no sooner than `REST` times the processor time of the last reading.
While they are unreadable, the figures of the last good reading stay, with their age.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.observe.metrics_feed import KEPT_AFTER_END_NS, MetricsFeed
from rftd.daemon.observe.metrics_state import AtScrape, show_state
from rftd.daemon.observe.metrics_void import ForeignRecords
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.database.schema import read_filled
from rftd.storage.queries.buffer import PlaceCount, count_buffer
from rftd.storage.queries.standing import Figures, Held, list_figures, list_held
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TRUTH, Partition
from rftd.streams.sqlite.wal import HasWal

T = TypeVar("T")
"""Type of a reading."""

REST: Final = 200
"""Minimum time between two readings of the tables, as a multiple of a reading's processor time: at most 0.5 % of one
core.
"""
RETRY_S: Final = 15.0
"""Maximum seconds without a new attempt after a failed reading."""
TIMEOUT_S: Final = 4.0
"""Maximum seconds to wait for the log or the tables; Prometheus waits ten."""
COUNTING_S: Final = 2.0
"""Maximum seconds of counting buffers in one reading; the remaining ones are counted in the next."""
_READING_ERRORS: Final = (RftdError, DBAPIError, OSError, TimeoutError)
"""Errors of a log or database that does not answer."""


class _Reading(NamedTuple):
    """Figures read from the tables at one time."""

    figures: list[Figures]
    """Figures of each experiment."""
    held: list[Held]
    """Resources held by workers."""
    filled_s: float | None
    """Seconds for filling the tables."""
    buffers: dict[UUID, list[PlaceCount]]
    """Buffer counts by experiment."""


class Projected(Protocol):
    """Positions of the log applied to the tables, as reported by the projector."""

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Offset of the next record to apply to the tables, by partition."""
        ...

    def applied_of(self, experiment: UUID) -> int:
        """Returns the number of the experiment's records in the tables; if it is unchanged, so are the figures."""
        ...


class PacedReading(Generic[T]):
    """The last successful reading of the tables, repeated until a new one is due."""

    def __init__(self, clock: Clock, processor_s: Callable[[], float] = time.process_time) -> None:
        """`processor_s` returns this process's processor time: on a busy machine a reading's elapsed time is longer."""
        self._clock = clock
        self._processor_s = processor_s
        self._last_reading: T | None = None
        """The last successful reading; None before the first."""
        self._read_at: Hashable = None
        """Position of the tables at the last reading."""
        self._read_s: float | None = None
        """Monotonic time of the last successful reading; None before the first."""
        self._next_s = 0.0
        """Earliest monotonic time of the next reading."""
        self.failed = False
        """True if the last reading failed or took too long."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the end of the last good reading; None before the first."""
        return None if self._read_s is None else self._clock.monotonic_s() - self._read_s

    async def of(self, at: Hashable, read: Callable[[], Awaitable[T]]) -> T | None:
        """Returns a new reading by `read`, or the last one if `at` (the tables' position) is unchanged, or it is too
        soon.

        Also returns the last reading after a failure or a time-out; None before the first success.
        """
        if (
            not self.failed and self._last_reading is not None and at == self._read_at
        ) or self._clock.monotonic_s() < self._next_s:
            return self._last_reading
        began_s = self._processor_s()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._last_reading = await read()
            self._read_at = at
            self._read_s = self._clock.monotonic_s()
            self.failed = False
        except _READING_ERRORS:
            end_if_cancelled()
            self.failed = True
        rest_s = REST * (self._processor_s() - began_s)
        self._next_s = self._clock.monotonic_s() + (min(rest_s, RETRY_S) if self.failed else rest_s)
        return self._last_reading


class _CountedBuffer:
    """The buffer counts of one experiment."""

    def __init__(self) -> None:
        self.counts: list[PlaceCount] | None = None
        """Last counts; None before the first time, and after an interrupted count."""
        self.applied = -1
        """Number of the experiment's records in the tables at the last count."""


class Scrape:
    """Answers scrapes, one at a time, from the log's heads and the newest paced reading of the tables."""

    def __init__(
        self,
        feed: MetricsFeed,
        *,
        log: EventLog,
        engine: AsyncEngine,
        applied: Projected,
        clock: Clock,
        tracer: Tracer | None = None,
        prices: Mapping[str, float] = MappingProxyType({}),
        processor_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`prices` are dollars per hour of an accelerator, by kind."""
        self._tracer = tracer
        self._spans_dropped = 0
        """The daemon's own dropped spans, as counted so far."""
        self._feed = feed
        self._log = log
        self._engine = engine
        self._applied = applied
        self._clock = clock
        self._prices = prices
        self._tables = PacedReading[_Reading](clock, processor_s)
        """Paced reading of the tables."""
        self._known_figures: dict[str, tuple[int, Figures]] = {}
        """Figures of experiments at the last reading, with the number of their records in the tables then."""
        self._buffers: dict[UUID, _CountedBuffer] = {}
        """Buffer counts by experiment, kept between readings."""
        self._cut_off = 0
        """Number of readings that ended before all buffers were counted."""
        self._turn = asyncio.Lock()
        """Held during one scrape."""

    @property
    def names_traces(self) -> bool:
        """True if the OpenMetrics format has more than Prometheus's own: trace ids in histogram buckets."""
        return self._tracer is not None

    def foreign_records(self, experiment: UUID) -> ForeignRecords | None:
        """Returns the foreign records naming the experiment; None if none was seen."""
        return self._feed.void.foreign.get(experiment)

    async def text(self, *, open_metrics: bool = False) -> bytes:
        """Returns every metric in Prometheus's text format, or OpenMetrics if `open_metrics`; figures not available in
        time are missing.
        """
        async with self._turn:
            self._feed.expire(self._clock.now_ns())
            await self._show_log()
            self._show_wal()
            self._count_dropped()
            await self._show_tables()
            return self._feed.metrics.expose(open_metrics=open_metrics)

    async def _show_log(self) -> None:
        """Asks the log at each scrape: a pushed lag would freeze together with its source."""
        produced = Counter[str]()
        consumed = Counter[str]()
        positions = self._applied.positions
        try:
            async with asyncio.timeout(TIMEOUT_S):
                heads = await self._log.heads()
        except _READING_ERRORS:
            end_if_cancelled()
            heads = {}
        for partition, mark in heads.items():
            produced[partition.stream] += mark.next_offset
            if partition in TRUTH:
                consumed[partition.stream] += positions.get(partition, 0)
        self._feed.metrics.streams.update(produced=produced, consumed=consumed)

    def _count_dropped(self) -> None:
        """Adds the spans dropped by the daemon's tracer since the last scrape."""
        if self._tracer is not None:
            dropped = self._tracer.dropped_total
            self._feed.metrics.spans_dropped.labels("", "daemon", "").inc(dropped - self._spans_dropped)
            self._spans_dropped = dropped

    def _show_wal(self) -> None:
        """Sets the gauges of the embedded log's write-ahead file."""
        if isinstance(self._log, HasWal):
            metrics = self._feed.metrics
            blocked = self._log.blocked
            metrics.wal_size.set(self._log.wal_size_bytes)
            metrics.wal_blocked_by.set(blocked.holders[0].pid if blocked and blocked.holders else 0)
            metrics.wal_blocked.set(blocked is not None)

    async def _show_tables(self) -> None:
        """Sets the gauges of state from the newest reading of the tables."""
        metrics = self._feed.metrics
        # An interrupted reading continues although nothing moves.
        at = (frozenset(self._applied.positions.items()), self._cut_off)
        read = await self._tables.of(at, self._read_tables)
        metrics.state_readable.set(not self._tables.failed)
        metrics.state_age.set(self._tables.age_s or 0.0)
        tables = read or _Reading([], [], None, {})
        if tables.filled_s is not None:
            metrics.rebuild_duration.labels("all").set(tables.filled_s)
        at_scrape = AtScrape(
            figures=tables.figures,
            buffers=tables.buffers,
            held=tables.held,
            declared=self._feed.declared,
            now_ns=self._clock.now_ns(),
        )
        show_state(metrics, at_scrape, self._prices)

    async def _read_tables(self) -> _Reading:
        """Reads figures, workers' devices and buffer counts from the tables."""
        since_ns = self._clock.now_ns() - KEPT_AFTER_END_NS
        # Before the reading: records added meanwhile may or may not be included, and are read again.
        applied = {id: self._applied.applied_of(UUID(id)) for id in self._known_figures}
        unchanged = {id: figures for id, (number, figures) in self._known_figures.items() if number == applied[id]}
        async with self._engine.connect() as connection, connection.begin():
            figures = await list_figures(connection, since_ns=since_ns, unchanged=unchanged)
            resources = await list_held(connection, since_ns=since_ns)
            filled_s = await read_filled(connection)
        self._known_figures = {
            experiment_figures.standing.id: (applied.get(experiment_figures.standing.id, -1), experiment_figures)
            for experiment_figures in figures
        }
        ids = [UUID(experiment_figures.standing.id) for experiment_figures in figures]
        self._buffers = {id: self._buffers.get(id) or _CountedBuffer() for id in ids}
        # A long history may not be counted in time; all other figures are shown meanwhile.
        try:
            async with asyncio.timeout(COUNTING_S):
                await self._count_buffers()
        except TimeoutError:
            self._cut_off += 1
        counted = {id: buffer.counts for id, buffer in self._buffers.items() if buffer.counts is not None}
        return _Reading(figures, resources, filled_s, counted)

    async def _count_buffers(self) -> None:
        """Counts the buffers of experiments with new records in the tables."""
        for id, buffer in self._buffers.items():
            applied = self._applied.applied_of(id)
            if applied != buffer.applied:
                buffer.counts = None
                async with self._engine.connect() as connection, connection.begin():
                    buffer.counts = await count_buffer(connection, id)
                buffer.applied = applied
