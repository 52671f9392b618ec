"""`Projector`: follows the log and updates the tables, with rows and positions in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops import faults, limits
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, UnreachableError, UsageError, WaitTimeoutError
from rftd.storage.database.engine import is_refused
from rftd.storage.database.schema import prepare, reset, write_filled
from rftd.storage.database.table_statistics import TableStatistics
from rftd.storage.projector.fold import Folded, TableFold
from rftd.storage.projector.projections import PROJECTIONS, Projection
from rftd.storage.projector.sole_writer import SoleWriter
from rftd.storage.projector.standing_plans import read_standing_plans
from rftd.storage.projector.writer import TableWriter, read_fences, read_once, read_positions
from rftd.streams.events.worker import RecordDeadLettered
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import EXPERIENCES, TRUTH, Partition

_TRANSIENT: Final = (SQLAlchemyError, OSError, UnreachableError, ConflictError, UsageError)
"""Errors after which positions are re-read and the work is retried, because an operator may fix the cause: the database
or the log does not answer or refuses, or another projector was faster.
"""
_LINGER_S: Final = 0.15
"""Pause after a batch, so that many small appends become few transactions; skipped if a caller waits for a record. The
tables must lag by less than a quarter of a second.
"""

_TURN_SIZE_BYTES: Final = 128 * 1024
"""Maximum bytes of record values in one turn, excluding experiences: an item of a plan takes some 30 bytes."""

_logger = logging.getLogger("rftd.projector")
"""Logger of the projector."""


@dataclass(frozen=True, kw_only=True)
class TablesFilling:
    """Progress of tables being filled from the first record on."""

    began_s: float
    """Monotonic time, in seconds, at which the filling of the tables began."""
    goals: Heads
    """The heads of the log at the start of filling."""

    def reached(self, positions: Heads) -> bool:
        """True if the positions cover all records present at the start; False if the log was empty then."""
        goals = {p: self.goals[p].next_offset for p in TRUTH if p in self.goals and self.goals[p].next_offset}
        return bool(goals) and all(p in positions and positions[p].next_offset >= goals[p] for p in goals)


class Projector:
    """Keeps the tables of a database equal to the fold of a log. Counters cover the life of the object."""

    def __init__(
        self,
        log: EventLog,
        engine: AsyncEngine,
        *,
        clock: Clock,
        projections: Sequence[Projection] = PROJECTIONS,
        max_records: int = 4 * limits.FETCH_RECORDS,
        report: Callable[[Sequence[RecordDeadLettered]], Awaitable[None]] | None = None,
        handled: Callable[[float, Mapping[str, int]], None] | None = None,
        point: Callable[[str], None] = faults.point,
    ) -> None:
        """`report` writes pointers to unusable records, and is awaited before the position advances.

        `handled` receives the seconds from delivery to committed effect of followed records, and the number of repeated
        events among them by stream.
        """
        self._applied = Counter[UUID | None]()
        """Number of records with an effect, by experiment."""
        self.void_records = 0
        """Records without effect because of an earlier fence, and plans that are not of the next step."""
        self.repeated_records = 0
        """Records without effect because the same event was already in the partition."""
        self.dead_records = 0
        """Unusable records."""
        self.last_error: str | None = None
        """The error of the database or the log, while they do not answer."""
        self._log = log
        self._sole = SoleWriter(engine, clock=clock)
        """Opener of the projector's transactions, all on one connection, with the lock of the database."""
        self._statistics = TableStatistics(engine)
        """Keeper of the database's statistics."""
        self._clock = clock
        self._projections = tuple(projections)
        """The projections to fill."""
        self._max_records = max_records
        self._followed_records = min(max_records, limits.FETCH_RECORDS)
        """Maximum number of records of one batch while following."""
        self._report = report
        self._handled = handled
        self._filling: TablesFilling | None = None
        """Tables being filled from the first record on."""
        self._point = point
        self._writer = TableWriter()
        """Writer of the changes."""
        self._fold: TableFold | None = None
        """Fold that continues from the tables; None before the tables are opened, and after a failure until positions
        are read back.
        """
        self._committed: Heads = {}
        """Position of each partition as last committed to the tables by this projector, or as read at opening."""
        self._moved = asyncio.Event()
        """Event set at the next commit or at the end of `run`, then replaced by a new event."""
        self._waiting = 0
        """Number of callers waiting for a record."""
        self._hurry = asyncio.Event()
        """Event that ends `_linger`: set when a caller begins to wait for a commit, cleared when `_linger` begins."""
        self._running = False
        """True while `run` works."""

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Returns, for each partition, the next offset not in the tables yet."""
        return {partition: mark.next_offset for partition, mark in self._committed.items()}

    @property
    def applied_records(self) -> int:
        """Returns the number of records with an effect, over all experiments."""
        return self._applied.total()

    def applied_of(self, experiment: UUID) -> int:
        """Returns the number of an experiment's records with an effect, unchanged as long as the tables' answers."""
        return self._applied[experiment]

    @property
    def applied_counts(self) -> Mapping[UUID | None, int]:
        """Numbers of records with an effect, by experiment."""
        return self._applied

    async def open(self) -> None:
        """Creates the tables if needed and loads the stored positions, checked against the log.

        Raises LogLossError, naming the position, if the log lost records of the tables; UnreachableError if the
        database does not answer or refuses the connection; ConflictError for a database of another release or another
        projector.
        """
        async with self._sole.transaction() as connection:
            anew = await prepare(connection, self._projections)
            positions = await read_positions(connection)
            fences = await read_fences(connection)
            once = await read_once(connection)
            planned = await read_standing_plans(connection)
        # Before the first write: tables beyond the log's end are a witness of a loss, and stay unchanged.
        await self._log.check_heads(positions)
        if anew:
            self._statistics.begin_anew()
            self._filling = TablesFilling(began_s=self._clock.monotonic_s(), goals=await self._log.heads())
        self._fold = TableFold(positions, fences, self._projections, once, planned)
        self._committed = {}
        self._advance(positions)

    async def reset(self) -> None:
        """Drops the tables; the next use creates tables anew and starts at the log's first records."""
        self._fold = None
        async with self._sole.transaction() as connection:
            await reset(connection)

    async def close(self) -> None:
        """Releases the database for another projector; the next use acquires the database again."""
        self._fold = None
        await self._sole.close()

    async def run(self) -> None:
        """Applies existing and arriving records until cancelled; waits while the database does not answer.

        Raises LogLossError, LogCorruptError and UnknownVersionError: continuing would make the tables wrong.
        """
        async with self._statistics.renewed():
            await self._run_until_cancelled()

    async def _run_until_cancelled(self) -> None:
        """Follows the log, with back-off after transient errors."""
        assert not self._running, "one run at a time"
        self._running = self._sole.keeps = True
        failures = 0
        try:
            while True:
                before = self.applied_records
                try:
                    await self._follow()
                except _TRANSIENT as error:
                    end_if_cancelled()  # a cancelled statement may surface as an error of SQLAlchemy
                    # Progress since the last failure resets the delays: a new outage has begun.
                    failures = 1 if self.applied_records > before else failures + 1
                    self.last_error = str(error).partition("\n")[0]
                    _logger.warning("projections wait: %s", self.last_error)
                    delays = limits.RESTART_BACKOFF_S
                    await self._clock.sleep(delays[min(failures, len(delays)) - 1])
        finally:
            self._running = self._sole.keeps = False
            self._wake()  # callers of `catch_up` wait for moves of this run, and continue by themselves now
            await self.close()

    async def catch_up(self, until: Heads | None = None) -> None:
        """Applies every record below `until` (default: the current heads of the log), and none above."""
        goals = until if until is not None else await self._log.heads()
        while self._running:  # two folds of one database would conflict over positions: `run` does the work
            if all(self.positions.get(p, 0) >= goals[p].next_offset for p in TRUTH if p in goals):
                return
            await self._wait_for_commit()
        await self._open_fold()
        before: tuple[Sequence[Record], Folded] | None = None
        async for records in self._records_below(goals):
            before = await self._commit_and_fold(before, records)
        if before is not None:
            await self._commit_and_fold(before, ())
        await self._statistics.renew()

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this position is in the tables. Raises WaitTimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.positions.get(partition, 0) <= offset:
                    await self._wait_for_commit()
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"{partition}@{offset} is not in the tables after {timeout_s} s",
                fix=self.last_error or "the tables lag behind the log; try again",
            ) from error

    async def _records_below(self, goals: Heads) -> AsyncIterator[Sequence[Record]]:
        """Yields the records from the committed positions up to `goals`, partition by partition."""
        starts = dict(self.positions)
        for partition in TRUTH:
            start = starts.get(partition, 0)
            goal = goals[partition].next_offset if partition in goals else 0
            while start < goal:
                read = await self._log.read(partition, start, max_records=self._max_records)
                records = [record for record in read if record.offset < goal]
                if not records:
                    break
                yield records
                start = records[-1].offset + 1

    async def _commit_and_fold(
        self, before: tuple[Sequence[Record], Folded] | None, records: Sequence[Record]
    ) -> tuple[Sequence[Record], Folded] | None:
        """Commits the changes folded `before` while `records` are folded. Returns the next changes to commit."""
        fold = await self._open_fold()
        sent = asyncio.Event()
        writing = self._commit(before[1] if before is not None else Folded(), sent)
        # Both must end before the next action: a fold still running would change positions under a successor.
        outcomes = await asyncio.gather(writing, self._fold_after_sending(fold, records, sent), return_exceptions=True)
        folded = outcomes[1]
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if isinstance(folded, Folded) and not failures:
            return (records, folded) if records else None
        self._fold = None
        for failure in failures:
            if not is_refused(failure):
                raise failure
        # Record by record, skipping committed records, until the refused record is found.
        for uncommitted in (before[0] if before else (), records):
            await self._apply(await self._open_fold(), uncommitted)
        return None

    async def _fold_after_sending(self, fold: TableFold, records: Sequence[Record], sent: asyncio.Event) -> Folded:
        # Folding before the database has work would only delay the database.
        """Folds records once the database has its work."""
        await sent.wait()
        return await asyncio.to_thread(fold.take, records)

    async def _open_fold(self) -> TableFold:
        """Returns the fold, after opening the tables if needed."""
        if self._fold is None:
            await self.open()
            assert self._fold is not None
        return self._fold

    async def _follow(self) -> None:
        """Applies records as they arrive, until an error or cancellation."""
        fold = await self._open_fold()
        positions = self.positions
        subscription = self._log.subscribe({partition: positions.get(partition, 0) for partition in TRUTH})
        try:
            while True:
                # Fewer than in catching up: rows are many small objects, and once freed, fragmented memory remains, as
                # much as the largest batch since the start needed.
                records = await subscription.next(wait_s=1.0, max_records=self._followed_records)
                if not records:
                    if await self._sole.is_lost():
                        self._fold = None  # a killed server may have lost the newest commits
                        raise UnreachableError("Postgres closed the connection")
                    self.last_error = None
                    continue
                for few in _turns_of(records):
                    await self._apply(fold, few)
                    fold = await self._open_fold()
                self.last_error = None
                if len(records) < self._followed_records and _size_of(records) < limits.FETCH_SIZE_BYTES // 2:
                    await self._linger()
        finally:
            await subscription.close()

    async def _wait_for_commit(self) -> None:
        """Returns after the next commit, which does not linger."""
        self._waiting += 1
        self._hurry.set()
        try:
            await self._moved.wait()
        finally:
            self._waiting -= 1

    async def _linger(self) -> None:
        """Lets records accumulate, unless a caller is waiting."""
        self._hurry.clear()
        if self._waiting:
            return
        pause = asyncio.ensure_future(self._clock.sleep(_LINGER_S))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((pause, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            hurry.cancel()

    async def _apply(self, fold: TableFold, records: Sequence[Record]) -> None:
        """Folds and commits records; record by record if the database refuses a value."""
        began_s = self._clock.monotonic_s()
        try:
            folded = await asyncio.to_thread(fold.take, records)
            await self._commit(folded)
            if self._handled is not None:
                repeated = dict.fromkeys((record.partition.stream for record in records), 0) | folded.repeated
                self._handled(self._clock.monotonic_s() - began_s, repeated)
        except BaseException as error:
            # The outcome of the commit is unknown, and the fold is ahead: the next use reads the positions back.
            self._fold = None
            if not is_refused(error):
                raise
            _logger.warning("a record's values were refused by the database: %s", type(error).__name__)
            await self._apply_singly(records)

    async def _apply_singly(self, records: Sequence[Record]) -> None:
        """Commits each record in a separate transaction; a record refused by the database becomes a dead letter."""
        for record in records:
            fold = await self._open_fold()
            try:
                await self._commit(fold.take([record]))
            except BaseException as error:
                self._fold = None
                if not is_refused(error):
                    raise
                fold = await self._open_fold()
                refused = ValueError(f"the database refused its values: {type(error).__name__}")
                await self._commit(fold.bury(record, refused))

    async def _commit(self, folded: Folded, sent: asyncio.Event | None = None) -> None:
        """Writes the changes; `sent` is set once the database has work, or without any."""
        try:
            if folded.after:
                await self._write(folded, sent or asyncio.Event())
        finally:
            if sent is not None:
                sent.set()

    async def _write(self, folded: Folded, sent: asyncio.Event) -> None:
        # Before the position advances: after a crash in between, letters are reported again without harm; in the
        # opposite order they would never be reported.
        """Reports dead letters, then writes rows and positions in one transaction."""
        if folded.letters and self._report is not None:
            await self._report(folded.letters)
        async with self._sole.transaction() as connection:
            await self._writer.write(connection, folded, sent)
            if self._filling is not None and self._filling.reached({**self._committed, **folded.after}):
                await write_filled(connection, self._clock.monotonic_s() - self._filling.began_s)
                self._filling = None
            self._point("projector.before_commit")
        self._point("projector.after_commit")
        self._applied += folded.applied
        self.void_records += folded.void
        self.repeated_records += folded.repeated.total()
        self.dead_records += len(folded.letters)
        self._advance(folded.after)

    def _advance(self, positions: Heads) -> None:
        """Notes committed positions, and wakes waiting callers."""
        self._committed.update(positions)
        self._statistics.grew(sum(mark.next_offset for mark in self._committed.values()))
        self._wake()

    def _wake(self) -> None:
        """Wakes callers waiting for a commit."""
        self._moved.set()
        self._moved = asyncio.Event()  # a new event for the next move: waiters on the old one are awake


def _turns_of(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Splits the records into turns with at most `_TURN_SIZE_BYTES` of values, experiences not counted: a few thousand
    rows each.

    An experience is a row, but a plan has a row per item: after a lag, a thousand records of the spine would be a
    hundred thousand rows at once, and the process keeps the peak memory of the largest turn.
    """
    start = 0
    size_bytes = 0
    for end, record in enumerate(records):
        size_bytes += len(record.value) if record.partition.stream != EXPERIENCES else 0
        if size_bytes > _TURN_SIZE_BYTES and end > start:
            yield records[start:end]
            start = end
            size_bytes = len(record.value)
    yield records[start:]


def _size_of(records: Sequence[Record]) -> int:
    """Returns the bytes of the records' values."""
    return sum([len(record.value) for record in records])
