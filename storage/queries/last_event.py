# ruff: noqa: S608 (only names of this package's tables are put into the text; values are parameters)
"""The time of an experiment's newest event according to the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.database.tables.base import Row
from rftd.storage.database.tables.experiences import Experiences
from rftd.storage.database.tables.experiments import Experiments
from rftd.storage.queries.rows import fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_TIME: Final = "_ns"
"""Ending of the names of all columns with a time."""
_LATER: Final = "eligible_at_ns"
"""A planned future time, which is not the time of an event."""


class _Newest(msgspec.Struct, frozen=True):
    """A row with the newest time in any table."""

    newest_ns: int | None
    """Newest time, Unix time in nanoseconds; None without any."""


async def last_event_ns(connection: AsyncConnection, experiment: UUID) -> int:
    """Returns the time of the newest event in any table, Unix time in nanoseconds; 0 for an unknown experiment.

    Experiences, up to millions, are left out: leases and groups are a few minutes older.
    """
    times = []
    for table in Row.metadata.sorted_tables:
        key = "id" if table.name == Experiments.__tablename__ else "experiment"
        if table.name == Experiences.__tablename__ or key not in table.columns:
            continue
        columns = (column.name for column in table.columns if column.name.endswith(_TIME) and column.name != _LATER)
        times += [f"SELECT MAX({column}) AS at_ns FROM {table.name} WHERE {key} = :experiment" for column in columns]
    union = " UNION ALL ".join(times)
    sql = f"SELECT MAX(at_ns) AS newest_ns FROM ({union}) AS times"
    newest = await fetch_one(connection, _Newest, sql, experiment=experiment.bytes)
    return (newest.newest_ns or 0) if newest is not None else 0
