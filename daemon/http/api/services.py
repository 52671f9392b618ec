"""`Services`: the daemon as its API sees it: commands, tables, log, and its own state."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.daemon.http.api.problem import BusyError
from rftd.daemon.http.views.budgets import BudgetRow
from rftd.daemon.http.views.budgets import rows_of as budget_rows
from rftd.daemon.http.views.memory import MemoryRow, rows_of
from rftd.daemon.http.views.trackers import TrackerRow
from rftd.daemon.http.views.trackers import rows_of as tracker_rows
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.observe.metrics_void import foreign_wait
from rftd.daemon.run.operations import Operations
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.token_holder import TokenHolder
from rftd.daemon.trust.tokens import Bearer, asker_of
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import UnreachableError, UsageError
from rftd.ops.health import Health
from rftd.ops.ids import Ids
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.names import resolve_experiment
from rftd.storage.queries.spent import spent_tokens
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, TRUTH, Partition
from rftd.workers.control.budgets import budget_uses, unseen_use

READ_TIMEOUT_S: Final = 10.0
"""The longest wait for the tables to reach `?after=`."""
FOLLOWERS: Final = 64
"""The most clients that follow experiments at once: each looks at the tables twice a second."""
EVERYBODY: Final = Bearer(OWNER, "")
"""Whoever asks a daemon that was told to ask for no token."""
_POSITION: Final = re.compile(r"([a-z.]{1,40})/(\d{1,4})@(\d{1,18})")


class Applied(Protocol):
    """The state of the tables; the projector."""

    last_error: str | None
    """The reason why it waits, while the database or the log does not answer."""

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this place is in the tables. Raises WaitTimeoutError."""
        ...

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset of each partition that is not in the tables yet."""
        ...

    def applied_of(self, experiment: UUID) -> int:
        """Records of one experiment that the tables were changed by."""
        ...


class Followers:
    """Places for clients that follow experiments."""

    def __init__(self, most: int = FOLLOWERS) -> None:
        self._most = most
        self._taken = 0

    def check(self) -> None:
        """Raises BusyError if no place is free."""
        if self._taken >= self._most:
            raise BusyError(f"{self._most} clients follow experiments already", fix="end another `rftd watch`")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Holds one place. Raises as `check`."""
        self.check()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


@dataclass(frozen=True, kw_only=True)
class Services:
    """The daemon as its API sees it."""

    operations: Operations
    engine: AsyncEngine
    """The state database; only read."""
    log: EventLog
    applied: Applied
    health: Health
    scrape: Scrape
    clock: Clock
    ids: Ids
    version: str
    daemon_log: Path | None = None
    """The file of the daemon's own log, if it has one."""
    curves: RewardCurves = field(default_factory=RewardCurves)
    followers: Followers = field(default_factory=Followers)

    keyring: Keyring | None = None
    """The tokens that let askers in; None: everybody is the owner."""
    bearer: Bearer = EVERYBODY
    """The one who asks."""

    def for_bearer(self, bearer: Bearer) -> Services:
        """The daemon as this bearer's asker sees it: commands are given in the asker's name."""
        return replace(self, operations=self.operations.for_asker(bearer.asker), bearer=bearer)

    @property
    def asker(self) -> Asker:
        """The one who asks."""
        return self.bearer.asker

    def take_submission(self) -> None:
        """Counts a submission of the asker. Raises QuotaError if its hour's are used up."""
        if self.keyring is not None:
            self.keyring.uses.take_submission(self.asker.name, self.asker.quota)

    def login_path(self) -> str:
        """The path of a one-time link, with the rights of the asker."""
        return "/login" if self.keyring is None else self.keyring.link_for(self.bearer)

    def holders(self) -> tuple[TokenHolder, ...]:
        """The named tokens in use that the asker may see: all for an admin, else the asker's own."""
        if self.keyring is None:
            return ()
        uses = self.keyring.uses
        return tuple(
            TokenHolder(entry, asker_of(entry).quota, uses.use_of(entry.name))
            for entry in self.keyring.tokens.entries()
            if self.asker.role >= AccessRole.ADMIN or entry.name == self.asker.name
        )

    @asynccontextmanager
    async def read(self, after: str | None = None) -> AsyncIterator[AsyncConnection]:
        """One snapshot of the tables, not older than the record at `after`."""
        if after is not None:
            position = position_of(after)
            # Heartbeats and dead letters are in no table: a wait for one of them would last until its time-out.
            if position.partition not in TRUTH:
                raise UsageError(f"{position.partition} is in no table", field="after")
            await self.applied.wait_for(position.partition, position.offset, READ_TIMEOUT_S)
        # One transaction for one answer: its parts must not come from different moments of the fold.
        async with self.engine.connect() as connection, connection.begin():
            yield connection

    def waiting(self, experiment: UUID) -> str | None:
        """The reason why nothing moves, whatever the tables say: a failure of the log, else engines that open."""
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
        """A line about records that name the experiment and that a stranger wrote; none if there are none."""
        records = self.scrape.foreign_records(experiment)
        return [] if records is None else [foreign_wait(records)]

    def memory(self, experiment: UUID) -> list[MemoryRow]:
        """The memory that its workers were expected to take when it was accepted, and what they use."""
        return rows_of(self.operations.memory(experiment), self.operations.used_bytes(experiment))

    async def trackers(self, experiment: UUID) -> list[TrackerRow]:
        """Its trackers, and how far each has come."""
        return tracker_rows(await self.operations.trackers(experiment))

    async def budgets(self, connection: AsyncConnection, experiment: UUID) -> list[BudgetRow]:
        """Its budgets, and what is spent of each."""
        spent = self.operations.spent(experiment)
        if spent is None:
            return []
        if spent.tokens is None:
            stages = spent.spec.stages
            row_stages = [number for number, stage in enumerate(stages) if not stage.experiences_per_step]
            spent = spent._replace(tokens=await spent_tokens(connection, experiment, row_stages))
        now_ns = self.clock.now_ns()
        return budget_rows([*budget_uses(spent, now_ns), unseen_use(spent, now_ns)])

    async def find(self, wanted: str, after: str | None = None) -> UUID:
        """The experiment that a person named. Raises NotFoundError, UsageError."""
        try:
            async with self.read(after) as connection:
                return await self.resolve(connection, wanted)
        except (DBAPIError, OSError, UnreachableError):
            # The tables are away: names are in memory as well, and whoever asks why wants to know just then.
            return self.operations.named(wanted)

    async def resolve(self, connection: AsyncConnection, wanted: str) -> UUID:
        """The experiment that a person named, within a snapshot that is open. Raises NotFoundError, UsageError."""
        return await resolve_experiment(connection, wanted)

    @contextmanager
    def follower(self) -> Iterator[None]:
        """One of the places for clients that wait. Raises BusyError if all are taken, QuotaError for the asker's."""
        with ExitStack() as stack:
            if self.keyring is not None:
                stack.enter_context(self.keyring.uses.stream(self.asker.name, self.asker.quota))
            stack.enter_context(self.followers.one())
            yield

    def check_follower(self) -> None:
        """Raises what `follower` would."""
        if self.keyring is not None:
            self.keyring.uses.check_stream(self.asker.name, self.asker.quota)
        self.followers.check()


def position_of(text: str) -> Position:
    """The position of a text `stream/partition@offset`, as answers give it. Raises UsageError."""
    match = _POSITION.fullmatch(text)
    topic = TOPICS.get(match[1]) if match else None
    if match is None or topic is None or int(match[2]) >= topic.partitions:
        raise UsageError(
            f"{text[:80]!r} is no position in the log", field="after", fix="use the `position` of an earlier answer"
        )
    return Position(Partition(match[1], int(match[2])), int(match[3]))
