"""Folds the log from nothing into fresh tables, and compares them with the live ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.storage.database import open_database
from rftd.storage.digest import Digests, digest
from rftd.storage.projections import PROJECTIONS, Projection
from rftd.storage.projector import Projector
from rftd.streams.log import EventLog


class RebuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild found."""

    rebuilt: Digests
    live: Digests | None = None
    """At the same positions; None if there was nothing to compare with."""

    @property
    def different(self) -> tuple[str, ...]:
        """Names of the tables that differ from the live ones."""
        if self.live is None:
            return ()
        return tuple(name for name, value in self.live.tables.items() if self.rebuilt.tables.get(name) != value)


async def rebuild(
    log: EventLog,
    url: str,
    *,
    clock: Clock,
    live: AsyncEngine | None = None,
    projections: Sequence[Projection] = PROJECTIONS,
) -> RebuildReport:
    """Empties the database at `url` and fills it from the log, up to the positions of `live` if that is given.

    `live` may be in use meanwhile: it is read at one moment. Raises LogLossError if it holds what the log does not.
    """
    seen = await digest(live) if live is not None else None
    if seen is not None:
        await log.check_heads(seen.positions)
    engine = open_database(url)
    projector = Projector(log, engine, clock=clock, projections=projections, max_records=limits.REBUILD_RECORDS)
    try:
        await projector.reset()
        await projector.catch_up(seen.positions if seen is not None else None)
        return RebuildReport(rebuilt=await digest(engine), live=seen)
    finally:
        await projector.close()
        await engine.dispose()
