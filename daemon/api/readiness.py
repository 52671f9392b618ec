"""The checks behind /livez and /readyz of a daemon."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.api.services import Applied
from rftd.ops.health import Health
from rftd.streams.log import EventLog


def readiness(log: EventLog, engine: AsyncEngine, applied: Applied) -> Health:
    """The log answers, the tables answer, and the projector is not stuck."""

    async def ask_log() -> str | None:
        await log.heads()
        return None if (failure := log.failure) is None else f"{failure.code}: {failure.what}"

    async def ask_tables() -> str | None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1 FROM positions LIMIT 1"))
        return None

    async def ask_projector() -> str | None:
        return applied.last_error

    health = Health()
    health.add("log", ask_log)
    health.add("state", ask_tables)
    health.add("projector", ask_projector)
    return health
