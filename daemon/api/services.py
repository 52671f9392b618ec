"""What the routes are given: the commands, the tables, the log, and what tells of the daemon itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.daemon.api.place import parse
from rftd.daemon.metrics_feed import MetricsFeed
from rftd.daemon.operations import Operations
from rftd.ops.clock import Clock
from rftd.ops.errors import UsageError
from rftd.ops.health import Health
from rftd.ops.ids import Ids
from rftd.storage.names import resolve_experiment
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.log import EventLog
from rftd.streams.topics import TRUTH, Partition

READ_TIMEOUT_S: Final = 10.0
"""Longest wait for the tables to reach `?after=`."""


class Applied(Protocol):
    """How far the tables have come; the projector."""

    last_error: str | None
    """Why it waits, while the database or the log does not answer."""

    async def wait_for(self, partition: Partition, offset: int, timeout_s: float | None) -> None:
        """Returns once the record at this place is in the tables. Raises WaitTimeoutError."""
        ...

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset of each partition that is not in the tables yet."""
        ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """The daemon as its API sees it."""

    operations: Operations
    engine: AsyncEngine
    """Of the state database; only read."""
    log: EventLog
    applied: Applied
    health: Health
    feed: MetricsFeed
    clock: Clock
    ids: Ids
    version: str
    curves: RewardCurves = field(default_factory=RewardCurves)

    @asynccontextmanager
    async def read(self, after: str | None = None) -> AsyncIterator[AsyncConnection]:
        """One snapshot of the tables, not older than the record at `after`."""
        if after is not None:
            position = parse(after)
            if position.partition not in TRUTH:
                raise UsageError(f"{position.partition} is in no table", field="after")
            await self.applied.wait_for(position.partition, position.offset, READ_TIMEOUT_S)
        async with self.engine.connect() as connection, connection.begin():
            yield connection

    def waiting(self, experiment: UUID) -> str | None:
        """Why nothing moves, whatever the tables say; None while the log takes appends, and has lost nothing of it."""
        failure = self.operations.stopped(experiment) or self.log.failure
        return None if failure is None else f"{failure.code}: {failure.what}; fix: {failure.fix}"

    async def find(self, wanted: str, after: str | None = None) -> UUID:
        """The experiment that a person named. Raises NotFoundError, UsageError."""
        async with self.read(after) as connection:
            return await resolve_experiment(connection, wanted)
