"""`rebuild`: folds the log from the first record into fresh tables, compared with the live tables by canonical digests.

Equal tables have equal digests, on SQLite and on Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from sqlalchemy import Column, Float, Table, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.storage.database.engine import open_database
from rftd.storage.database.schema import check_revision
from rftd.storage.database.tables.base import Row, table_of
from rftd.storage.database.tables.progress import Meta
from rftd.storage.projector.projections import PROJECTIONS, Projection
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.writer import read_positions
from rftd.streams.log.chain import Heads
from rftd.streams.log.log import EventLog

_ROWS_PER_DIGEST: Final = 2000
"""Number of rows digested at once."""
_encode: Final = msgspec.msgpack.Encoder().encode
"""Encoder of a row for the digest."""


class Digests(msgspec.Struct, frozen=True):
    """The sha256 of each table at some positions of the log."""

    positions: Heads
    """Positions of the log applied to the tables."""
    tables: dict[str, str]
    """The sha256 of each table, in hex, by name."""

    @property
    def total(self) -> str:
        """Returns a sha256 (hex) over the digests of all tables, in name order."""
        return sha256(_encode(sorted(self.tables.items()))).hexdigest()


async def digest(engine: AsyncEngine) -> Digests:
    """Returns the digests of every table, read from one snapshot even while a projector writes.

    Raises ConflictError for tables of another release.
    """
    async with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execution_options(isolation_level="REPEATABLE READ")
            # Rows arrive in the order of the key's index without a sort, however large the table.
            await connection.execute(text("SET LOCAL enable_sort = off"))
        await check_revision(connection)
        positions = await read_positions(connection)
        tables = [table for table in Row.metadata.sorted_tables if table is not table_of(Meta)]
        return Digests(positions, {str(table.name): await digest_of(connection, table) for table in tables})


async def digest_of(
    connection: AsyncConnection, table: Table, left_out: Callable[[Column[Any]], bool] = lambda column: False
) -> str:
    """Returns the sha256 over all rows of a table in key order, without the columns that are `left_out`.

    Equal rows have equal digests on SQLite and on Postgres. A key column left out still determines the order.
    """
    columns = [column for column in table.columns if not left_out(column)]
    # Text is ordered by bytes on both databases: see `tables.base`.
    statement = select(*columns).order_by(*table.primary_key.columns)
    hasher = sha256(_encode([str(column.name) for column in columns]))
    floats = [index for index, column in enumerate(columns) if isinstance(column.type, Float)]
    async with connection.stream(statement) as rows:
        async for chunk in rows.partitions(_ROWS_PER_DIGEST):
            hasher.update(_encode([_canonical(row, floats) for row in chunk]))
    return hasher.hexdigest()


def _canonical(row: Iterable[Any], floats: Sequence[int]) -> list[Any]:
    """Returns a row with equal values on both databases: -0.0 becomes 0.0."""
    cells = list(row)
    for index in floats:
        if cells[index] is not None:
            cells[index] += 0.0  # turns -0.0, which SQLite does not preserve, into 0.0
    return cells


class RebuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a rebuild: digests of the rebuilt tables, and of the live tables for comparison."""

    rebuilt: Digests
    """Digests of the rebuilt tables."""
    live: Digests | None = None
    """The live tables' digests at the same positions; None without live tables."""

    @property
    def different(self) -> tuple[str, ...]:
        """Names of the tables different from the live ones."""
        if self.live is None:
            return ()
        return tuple(name for name, digest in self.live.tables.items() if self.rebuilt.tables.get(name) != digest)


async def rebuild(
    log: EventLog,
    url: str,
    *,
    clock: Clock,
    live: AsyncEngine | None = None,
    projections: Sequence[Projection] = PROJECTIONS,
) -> RebuildReport:
    """Empties the database at `url`, then fills the tables from the log, up to the positions of `live` if given.

    `live` may be in use meanwhile: the tables are read in a single snapshot. Raises LogLossError if `live` holds
    records missing from the log, ConflictError for tables of another release.
    """
    # The live tables first: the log only grows, so the live positions are within the log read later.
    live_digests = await digest(live) if live is not None else None
    if live_digests is not None:
        await log.check_heads(live_digests.positions)
    engine = open_database(url)
    projector = Projector(log, engine, clock=clock, projections=projections, max_records=limits.REBUILD_RECORDS)
    try:
        await projector.reset()
        await projector.catch_up(live_digests.positions if live_digests is not None else None)
        return RebuildReport(rebuilt=await digest(engine), live=live_digests)
    finally:
        await projector.close()
        await engine.dispose()
