"""The checks behind /livez and /readyz of a daemon."""

from __future__ import annotations

import asyncio
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.api.services import Applied
from rftd.daemon.patience import Troubles
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.ops.errors import UnreachableError
from rftd.ops.health import CHECK_TIMEOUT_S, Health, Note, said
from rftd.streams.backends.sqlite.wal import HasWal
from rftd.streams.log import EventLog

_LOG_TIMEOUT_S: Final = 0.75 * CHECK_TIMEOUT_S
"""The longest wait for the log, within the time-out of the check as a whole, which cannot say why."""


def readiness(
    log: EventLog,
    engine: AsyncEngine,
    applied: Applied,
    guard: DiskGuard | None = None,
    troubles: Troubles | None = None,
) -> Health:
    """The log answers, the tables answer, the projector is not stuck, there is space, and no part fails for ever."""

    async def ask_log() -> str | None:
        try:
            async with asyncio.timeout(_LOG_TIMEOUT_S):
                await log.heads()
        except TimeoutError:
            fix = "see whether its brokers run and enough replicas are in sync, and the network to them"
            return said(
                log.failure or UnreachableError(f"the log does not answer within {_LOG_TIMEOUT_S:g} s", fix=fix)
            )
        return None if (failure := log.failure) is None else said(failure)

    async def ask_wal() -> str | None:
        blocked = log.blocked if isinstance(log, HasWal) else None
        # A note and no failure: a write-ahead file that grows is for people to see, and no reason to take the daemon
        # out of service.
        return None if blocked is None else Note(blocked.told)

    async def ask_tables() -> str | None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1 FROM positions LIMIT 1"))
        return None

    async def ask_projector() -> str | None:
        return applied.last_error

    async def ask_guard() -> str | None:
        short = guard.shortage if guard is not None else None
        return None if short is None else f"{short.cause}: {short.reason}; fix: {short.fix}"

    async def ask_parts() -> str | None:
        return troubles.said() if troubles is not None else None

    health = Health()
    health.add("log", ask_log)
    health.add("wal", ask_wal)
    health.add("state", ask_tables)
    health.add("projector", ask_projector)
    health.add("disk", ask_guard)
    health.add("parts", ask_parts)
    return health
