"""`Services`: the daemon from its API's perspective: commands, tables, log, and the API's own state."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.daemon.http.api.opened_files import OpenedFiles
from rftd.daemon.http.api.problem import BusyError
from rftd.daemon.http.views.alerts import AlertList
from rftd.daemon.http.views.budgets import BudgetRow
from rftd.daemon.http.views.budgets import rows_of as budget_rows
from rftd.daemon.http.views.ended_pages import EndedPages
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.memory import MemoryRow, rows_of
from rftd.daemon.http.views.route import MachineAbilities
from rftd.daemon.http.views.trackers import TrackerRow
from rftd.daemon.http.views.trackers import rows_of as tracker_rows
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.observe.metrics_void import foreign_wait
from rftd.daemon.run.operations import Operations
from rftd.daemon.run.supervisor.recomputing import Recomputations
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.text.texts import Texts
from rftd.daemon.text.trials import Trials
from rftd.daemon.text.word_files import WordFiles
from rftd.daemon.text.word_index import WordIndex
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.token_holder import TokenHolder
from rftd.daemon.trust.tokens import Bearer, asker_of
from rftd.ops.clock import Clock, SystemClock, iso
from rftd.ops.errors import UnreachableError, UsageError
from rftd.ops.health import Diagnosis, Health, Verdict
from rftd.ops.ids import Ids, SystemIds
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.names import resolve_experiment
from rftd.storage.queries.run_figures import FiguresCache, RunFigures
from rftd.storage.queries.spent import spent_tokens
from rftd.storage.queries.step_columns import StepColumns
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, TRUTH, Partition
from rftd.workers.control.budgets import budget_uses, unseen_use
from rftd.workers.devices.host import Host

READ_TIMEOUT_S: Final = 10.0
"""Longest wait in seconds for the tables to reach `?after=`."""
FOLLOWERS: Final = 64
"""Maximum number of clients following experiments at once: each causes two looks at the tables per second."""
EVERYBODY: Final = Bearer(OWNER, "")
"""The bearer of every request to a daemon without token checks."""
_POSITION: Final = re.compile(r"([a-z.]{1,40})/(\d{1,4})@(\d{1,18})")
"""Form of a position in the log: `TOPIC/PARTITION@OFFSET`."""


def no_alerts() -> AlertList:
    """Returns the alerts of a daemon without receivers."""
    return AlertList(receivers=[], items=[])


class NoAbilities:
    """Implements `MachineAbilities` without findings, for a daemon that starts no worker."""

    async def engines(self, host: Host) -> list[Diagnosis]:
        """Returns nothing: no worker is started."""
        return []

    async def sandboxes(self) -> list[Diagnosis]:
        """Returns nothing: no worker is started."""
        return []


class Applied(Protocol):
    """The state of the tables, kept by the projector."""

    last_error: str | None
    """Reason for waiting, while the database or the log does not answer."""

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this position is in the tables. Raises WaitTimeoutError."""
        ...

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset of each partition not yet in the tables."""
        ...

    def applied_of(self, experiment: UUID) -> int:
        """Returns the number of one experiment's records that changed the tables."""
        ...

    @property
    def applied_counts(self) -> Mapping[UUID | None, int]:
        """Numbers of records that changed the tables, by experiment."""
        ...


class Followers:
    """Slots for clients following experiments, shared by all askers of the daemon."""

    def __init__(self, most: int = FOLLOWERS) -> None:
        self._most = most
        self._in_use = 0

    def check(self) -> None:
        """Raises BusyError if no slot is free; takes none."""
        if self._in_use >= self._most:
            raise BusyError(f"{self._most} clients follow experiments already", fix="end another `rftd watch`")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Holds one slot until the block ends. Raises as `check`."""
        self.check()
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1


@dataclass(frozen=True, kw_only=True)
class Services:
    """The daemon from its API's perspective, for one bearer."""

    operations: Operations
    engine: AsyncEngine
    """The state database, only for reading."""
    log: EventLog
    applied: Applied
    health: Health
    scrape: Scrape
    clock: Clock
    ids: Ids
    version: str
    daemon_log: Path | None = None
    """File of the daemon's own log, if it has one."""
    curves: RewardCurves = field(default_factory=RewardCurves)
    columns: StepColumns = field(default_factory=StepColumns)
    figures_cache: FiguresCache = field(default_factory=FiguresCache)
    pages: EndedPages[ExperimentPage] = field(default_factory=EndedPages)
    followers: Followers = field(default_factory=Followers)
    texts: Texts = field(default_factory=Texts)
    """Decoding of token ids, in a process of its own."""
    words: WordIndex = field(default_factory=lambda: WordIndex(WordFiles(None), SystemClock()))
    trials: Trials = field(default_factory=lambda: Trials(SystemIds(SystemClock())))
    """First rows and tried rollouts, each in a process of its own."""
    opened_files: OpenedFiles = field(default_factory=lambda: OpenedFiles(SystemClock()))
    """Experiment files on their way into the studio."""
    recomputations: Recomputations | None = None
    """Terms of objectives recomputed by replays; None for a daemon without decisions."""
    abilities: MachineAbilities = field(default_factory=NoAbilities)
    """Engines and sandboxes that the machine can run."""
    alerts: Callable[[], AlertList] = no_alerts
    """Function returning the newest alerts, and their receivers."""

    keyring: Keyring | None = None
    """Tokens with access; None: everybody is the owner."""
    bearer: Bearer = EVERYBODY
    """The authenticated asker with its token."""

    def for_bearer(self, bearer: Bearer) -> Services:
        """Returns the services for this bearer: commands are given in the asker's name."""
        return replace(self, operations=self.operations.for_asker(bearer.asker), bearer=bearer)

    def rehearsing(self) -> Services:
        """Returns the services for a dry run: commands raise `Rehearsed` in place of their first append."""
        return replace(self, operations=self.operations.rehearsing())

    @property
    def asker(self) -> Asker:
        """The asker of the request, with role and quota."""
        return self.bearer.asker

    def take_submission(self) -> None:
        """Counts a submission of the asker. Raises QuotaError if its hourly quota is used up."""
        if self.keyring is not None:
            self.keyring.uses.take_submission(self.asker.name, self.asker.quota)

    def login_path(self) -> str:
        """Returns the path of a one-time link, with the rights of the asker."""
        return "/login" if self.keyring is None else self.keyring.link_for(self.bearer)

    def open_file(self, name: str, text: str) -> str:
        """Keeps an experiment file for the asker's studio, and returns the id of the file."""
        return self.opened_files.add(name, text, self.asker.name)

    def holders(self) -> tuple[TokenHolder, ...]:
        """Returns the named tokens visible to the asker: all for an admin, else the asker's own."""
        if self.keyring is None:
            return ()
        uses = self.keyring.uses
        return tuple(
            TokenHolder(holder, asker_of(holder).quota, uses.use_of(holder.name))
            for holder in self.keyring.tokens.entries()
            if self.asker.role >= AccessRole.ADMIN or holder.name == self.asker.name
        )

    @asynccontextmanager
    async def read(self, after: str | None = None, *, newest: bool = False) -> AsyncIterator[AsyncConnection]:
        """Opens one snapshot of the tables, not older than the record at `after`, and with `newest` not older than any
        record in the log now. Raises WaitTimeoutError.
        """
        if after is not None:
            position = position_of(after)
            # Heartbeats and dead letters are in no table: a wait for one would last until its time-out.
            if position.partition not in TRUTH:
                raise UsageError(f"{position.partition} is in no table", field="after")
            await self.applied.wait_for(position.partition, position.offset, READ_TIMEOUT_S)
        if newest:
            for partition, mark in (await self.log.heads()).items():
                if partition in TRUTH:
                    await self.applied.wait_for(partition, mark.next_offset - 1, READ_TIMEOUT_S)
        # One transaction per answer: its parts must not come from different moments of the fold.
        async with self.engine.connect() as connection:
            await connection.begin()
            yield connection  # rolled back by the closing: a commit would be one more visit to the connection's thread

    def figures(self) -> Callable[[AsyncConnection, UUID], Awaitable[RunFigures]]:
        """Returns a read of an experiment's figures in a list, cached while nothing is new."""
        return partial(self.figures_cache.of, counts=self.figures_cache.counts(self.applied.applied_of))

    def applied_of(self, experiment: UUID) -> int:
        """Returns the number of the experiment's records in the tables."""
        return self.applied.applied_of(experiment)

    def applied_offsets(self) -> Mapping[Partition, int]:
        """Returns the next offset of each partition not yet in the tables."""
        return self.applied.positions

    async def verdict(self) -> Verdict:
        """Returns the results of the checks of readiness."""
        return await self.health.ready()

    def waiting(self, experiment: UUID) -> str | None:
        """Returns why the experiment stands still, whatever the tables say: a log failure, else opening engines."""
        failure = self.operations.stopped(experiment) or self.log.failure
        if failure is not None:
            return f"{failure.code}: {failure.what}; fix: {failure.fix}"
        opening = [
            f"{wait.role}{'' if wait.slot is None else f' {wait.slot}'} {wait.waiting_for}, since {iso(wait.since_ns)}"
            for wait in self.operations.opening(experiment)
            if wait.since_ns is not None
        ]
        return "; ".join(opening) or None

    def strangers(self, experiment: UUID) -> list[Wait]:
        """Returns a wait about records naming the experiment but written by a foreign program; empty without any."""
        records = self.scrape.foreign_records(experiment)
        return [] if records is None else [foreign_wait(records)]

    def memory(self, experiment: UUID) -> list[MemoryRow]:
        """Returns the memory forecast of the workers at acceptance, and their present use."""
        return rows_of(self.operations.memory(experiment), self.operations.used_bytes(experiment))

    async def trackers(self, experiment: UUID) -> list[TrackerRow]:
        """Returns the experiment's trackers with their progress, from cursors written by the tracker processes."""
        return tracker_rows(await self.operations.trackers(experiment))

    async def budgets(self, connection: AsyncConnection, experiment: UUID) -> list[BudgetRow]:
        """Returns the experiment's budgets with the amounts spent; empty without budgets."""
        spent = self.operations.spent(experiment)
        if spent is None:
            return []
        if spent.tokens is None:
            stages = spent.spec.stages
            row_stages = [number for number, stage in enumerate(stages) if not stage.experiences_per_step]
            spent = spent._replace(tokens=await spent_tokens(connection, experiment, row_stages))
        now_ns = self.clock.now_ns()
        return budget_rows([*budget_uses(spent, now_ns), unseen_use(spent, now_ns)])

    async def find(self, name_or_id: str, after: str | None = None) -> UUID:
        """Returns the experiment with this name or id. Raises NotFoundError, UsageError."""
        try:
            async with self.read(after) as connection:
                return await self.resolve(connection, name_or_id)
        except (DBAPIError, OSError, UnreachableError):
            # The tables are away: names are in memory as well, and a client asking for the reason needs an answer just
            # then.
            return self.operations.named(name_or_id)

    async def resolve(self, connection: AsyncConnection, name_or_id: str) -> UUID:
        """Returns the experiment with this name or id, within an open snapshot. Raises NotFoundError, UsageError."""
        return await resolve_experiment(connection, name_or_id)

    @contextmanager
    def follower(self) -> Iterator[None]:
        """Holds one slot for a following client. Raises BusyError if all are in use, QuotaError for a used-up quota."""
        with ExitStack() as stack:
            if self.keyring is not None:
                stack.enter_context(self.keyring.uses.stream(self.asker.name, self.asker.quota))
            stack.enter_context(self.followers.one())
            yield

    def check_follower(self) -> None:
        """Raises the errors of `follower` without holding a slot, while a refusal can still be an HTTP status."""
        if self.keyring is not None:
            self.keyring.uses.check_stream(self.asker.name, self.asker.quota)
        self.followers.check()


def position_of(text: str) -> Position:
    """Parses a position `stream/partition@offset` from an answer. Raises UsageError."""
    match = _POSITION.fullmatch(text)
    topic = TOPICS.get(match[1]) if match else None
    if match is None or topic is None or int(match[2]) >= topic.partitions:
        raise UsageError(
            f"{text[:80]!r} is no position in the log", field="after", fix="use the `position` of an earlier answer"
        )
    return Position(Partition(match[1], int(match[2])), int(match[3]))
