"""`Projector`: it follows the log and keeps the tables, with rows and positions in one transaction."""

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
"""Errors after which the positions are read back and all is tried again, for somebody may put it right: the database or
the log does not answer or refuses, or another projector was faster."""
_LINGER_S: Final = 0.15
"""The pause after a batch, so that many small appends become few transactions; none if somebody waits for a record. The
tables are to be less than a quarter of a second late."""

_TURN_SIZE_BYTES: Final = 128 * 1024
"""The values of one turn's records, without experiences: an item of a plan takes some 30 bytes."""

_logger = logging.getLogger("rftd.projector")


@dataclass(frozen=True, kw_only=True)
class TablesFilling:
    """Tables that are filled from the first record on."""

    began_s: float
    goals: Heads
    """The heads that the log had then."""

    def reached(self, positions: Heads) -> bool:
        """True if all that the log had then is below these positions; False if it had nothing."""
        goals = {p: self.goals[p].next_offset for p in TRUTH if p in self.goals and self.goals[p].next_offset}
        return bool(goals) and all(p in positions and positions[p].next_offset >= goals[p] for p in goals)


class Projector:
    """The process that keeps the tables of one database equal to the fold of one log. It counts over its own life."""

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
        """`report` writes pointers to records that could not be used: awaited before the position passes them.

        `handled` is told of records that were followed: the time from their delivery to their committed effect, and the
        number of those among them that were there before, by each of their streams.
        """
        self._applied = Counter[UUID | None]()
        self.void_records = 0
        """Records without effect, because a fence came before them, and plans that are not of the next step."""
        self.repeated_records = 0
        """Records without effect, because the same event was in the partition before."""
        self.dead_records = 0
        """Records that could not be used."""
        self.last_error: str | None = None
        """The error of the database or the log, while they do not answer."""
        self._log = log
        self._sole = SoleWriter(engine, clock=clock)
        self._statistics = TableStatistics(engine)
        self._clock = clock
        self._projections = tuple(projections)
        self._max_records = max_records
        self._followed_records = min(max_records, limits.FETCH_RECORDS)
        self._report = report
        self._handled = handled
        self._filling: TablesFilling | None = None
        """Tables that are being filled from the first record on."""
        self._point = point
        self._writer = TableWriter()
        self._fold: TableFold | None = None
        self._committed: Heads = {}
        self._moved = asyncio.Event()
        self._wanted = 0
        """The number of callers that wait for a record."""
        self._hurry = asyncio.Event()
        self._running = False

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset of each partition that is not in the tables yet."""
        return {partition: mark.next_offset for partition, mark in self._committed.items()}

    @property
    def applied_records(self) -> int:
        """Records that had an effect."""
        return self._applied.total()

    def applied_of(self, experiment: UUID) -> int:
        """Records of one experiment that had an effect: while their number is the same, so is what the tables say."""
        return self._applied[experiment]

    async def open(self) -> None:
        """Makes the tables if need be and goes on at the stored positions, checked against the log.

        Raises LogLossError, naming the position, if the log lost records that the tables hold; UnreachableError if the
        database does not answer or refuses us; ConflictError if it is of another release or another projector's.
        """
        async with self._sole.transaction() as connection:
            anew = await prepare(connection, self._projections)
            positions = await read_positions(connection)
            fences = await read_fences(connection)
            once = await read_once(connection)
            planned = await read_standing_plans(connection)
        # Before the first write: tables that hold more than the log are a witness of its loss, and stay as they are.
        await self._log.check_heads(positions)
        if anew:
            self._statistics.begin_anew()
            self._filling = TablesFilling(began_s=self._clock.monotonic_s(), goals=await self._log.heads())
        self._fold = TableFold(positions, fences, self._projections, once, planned)
        self._committed = {}
        self._advance(positions)

    async def reset(self) -> None:
        """Drops the tables; the next use makes them anew and begins at the log's first records."""
        self._fold = None
        async with self._sole.transaction() as connection:
            await reset(connection)

    async def close(self) -> None:
        """Lets go of the database, so that another projector may have it; the next use takes it again."""
        self._fold = None
        await self._sole.close()

    async def run(self) -> None:
        """Applies what is in the log and what arrives, until cancelled; waits out a database that does not answer.

        Raises LogLossError, LogCorruptError and UnknownVersionError: to go on would make the tables wrong.
        """
        async with self._statistics.renewed():
            await self._run()

    async def _run(self) -> None:
        assert not self._running, "one run at a time"
        self._running = self._sole.keeps = True
        failures = 0
        try:
            while True:
                before = self.applied_records
                try:
                    await self._follow()
                except _TRANSIENT as error:
                    end_if_cancelled()  # a cancelled statement may end in an error of SQLAlchemy's: see there
                    # Progress since the last failure begins the waits anew: this is another outage.
                    failures = 1 if self.applied_records > before else failures + 1
                    self.last_error = str(error).partition("\n")[0]
                    _logger.warning("projections wait: %s", self.last_error)
                    delays = limits.RESTART_BACKOFF_S
                    await self._clock.sleep(delays[min(failures, len(delays)) - 1])
        finally:
            self._running = self._sole.keeps = False
            self._wake()  # callers of `catch_up` wait for moves of this run, and go on by themselves now
            await self.close()

    async def catch_up(self, until: Heads | None = None) -> None:
        """Applies everything below `until` (default: the heads that the log has now), and nothing above it."""
        goals = until if until is not None else await self._log.heads()
        while self._running:  # two folds of one database would take each other's positions: `run` does the work
            if all(self.positions.get(p, 0) >= goals[p].next_offset for p in TRUTH if p in goals):
                return
            await self._move()
        await self._opened()
        before: tuple[Sequence[Record], Folded] | None = None
        async for records in self._below(goals):
            before = await self._overlap(before, records)
        if before is not None:
            await self._overlap(before, ())
        await self._statistics.renew()

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this place is in the tables. Raises WaitTimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.positions.get(partition, 0) <= offset:
                    await self._move()
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"{partition}@{offset} is not in the tables after {timeout_s} s",
                fix=self.last_error or "the tables lag behind the log; try again",
            ) from error

    async def _below(self, goals: Heads) -> AsyncIterator[Sequence[Record]]:
        """The records from the committed positions up to `goals`, partition by partition."""
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

    async def _overlap(
        self, before: tuple[Sequence[Record], Folded] | None, records: Sequence[Record]
    ) -> tuple[Sequence[Record], Folded] | None:
        """Commits what was folded `before` while `records` are folded. Returns what is to be committed next."""
        fold = await self._opened()
        sent = asyncio.Event()
        writing = self._commit(before[1] if before is not None else Folded(), sent)
        # Both must end before anything else happens: a fold that still ran would change positions under its successor.
        results = await asyncio.gather(writing, self._take(fold, records, sent), return_exceptions=True)
        folded = results[1]
        failures = [result for result in results if isinstance(result, BaseException)]
        if isinstance(folded, Folded) and not failures:
            return (records, folded) if records else None
        self._fold = None
        for failure in failures:
            if not is_refused(failure):
                raise failure
        # One after the other, leaving out what was committed, until the refused record is found.
        for again in (before[0] if before else (), records):
            await self._apply(await self._opened(), again)
        return None

    async def _take(self, fold: TableFold, records: Sequence[Record], sent: asyncio.Event) -> Folded:
        # Folding before the database has work to do would only delay handing it out.
        await sent.wait()
        return await asyncio.to_thread(fold.take, records)

    async def _opened(self) -> TableFold:
        if self._fold is None:
            await self.open()
            assert self._fold is not None
        return self._fold

    async def _follow(self) -> None:
        fold = await self._opened()
        positions = self.positions
        subscription = self._log.subscribe({partition: positions.get(partition, 0) for partition in TRUTH})
        try:
            while True:
                # Fewer than in catching up: rows are many small objects, and when they are gone the memory between
                # them stays, as much as the largest batch since the start needed.
                records = await subscription.next(wait_s=1.0, max_records=self._followed_records)
                if not records:
                    self.last_error = None
                    continue
                for few in _of_few_rows(records):
                    await self._apply(fold, few)
                    fold = await self._opened()
                self.last_error = None
                if len(records) < self._followed_records and _size_of(records) < limits.FETCH_SIZE_BYTES // 2:
                    await self._linger()
        finally:
            await subscription.close()

    async def _move(self) -> None:
        """Returns after the next commit, which does not linger."""
        self._wanted += 1
        self._hurry.set()
        try:
            await self._moved.wait()
        finally:
            self._wanted -= 1

    async def _linger(self) -> None:
        """Lets records gather, unless somebody waits for them."""
        self._hurry.clear()
        if self._wanted:
            return
        pause = asyncio.ensure_future(self._clock.sleep(_LINGER_S))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((pause, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            hurry.cancel()

    async def _apply(self, fold: TableFold, records: Sequence[Record]) -> None:
        began_s = self._clock.monotonic_s()
        try:
            folded = await asyncio.to_thread(fold.take, records)
            await self._commit(folded)
            if self._handled is not None:
                repeated = dict.fromkeys((record.partition.stream for record in records), 0) | folded.repeated
                self._handled(self._clock.monotonic_s() - began_s, repeated)
        except BaseException as error:
            # The outcome of the commit is unknown, and the fold is ahead of it: the next use reads the positions back.
            self._fold = None
            if not is_refused(error):
                raise
            _logger.warning("a record's values were refused by the database: %s", type(error).__name__)
            await self._apply_singly(records)

    async def _apply_singly(self, records: Sequence[Record]) -> None:
        """Each record in its own transaction; one that the database refuses becomes a dead letter."""
        for record in records:
            fold = await self._opened()
            try:
                await self._commit(fold.take([record]))
            except BaseException as error:
                self._fold = None
                if not is_refused(error):
                    raise
                fold = await self._opened()
                refused = ValueError(f"the database refused its values: {type(error).__name__}")
                await self._commit(fold.bury(record, refused))

    async def _commit(self, folded: Folded, sent: asyncio.Event | None = None) -> None:
        """Writes the changes; `sent` is set when the database has its work, or none."""
        try:
            if folded.after:
                await self._write(folded, sent or asyncio.Event())
        finally:
            if sent is not None:
                sent.set()

    async def _write(self, folded: Folded, sent: asyncio.Event) -> None:
        # Before the position passes them: after a crash in between they are reported again, which is harmless, and the
        # other way round they would be reported never.
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
        self._committed.update(positions)
        self._statistics.grew(sum(mark.next_offset for mark in self._committed.values()))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()  # a new one for the next move: who waits on the old one is awake


def _of_few_rows(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """The records in turns, each of which becomes some thousand rows at most.

    An experience is one row, but a plan has one for each of its items: after a lag a thousand records of the spine
    would be a hundred thousand rows at once, and the memory that the most of them ever took stays with the process.
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
    return sum([len(record.value) for record in records])
