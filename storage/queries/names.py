"""`resolve_experiment`: an experiment of the tables by the text typed by a person."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.storage.database.tables.base import table_of
from rftd.storage.database.tables.experiments import Experiments
from rftd.streams.folds.spine import Kept
from rftd.streams.spec.naming import Named, choose


async def resolve_experiment(connection: AsyncConnection, text: str) -> UUID:
    """Returns the id of the experiment named by `text`: see `choose`."""
    table = table_of(Experiments)
    # A row without a submission comes from an event of a foreign or damaged log, not from an experiment.
    rows = await connection.execute(
        select(table.c.id, table.c.name, table.c.kept)
        .where(table.c.submitted_offset.is_not(None))
        .order_by(table.c.submitted_ns, table.c.id)
    )
    candidates = [
        Named(UUID(bytes=bytes(id)), str(name), location == Kept.REMOVED.value) for id, name, location in rows
    ]
    return choose(candidates, text)
