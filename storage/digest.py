"""Canonical digests of the tables: equal tables, equal digests, on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from sqlalchemy import Float, Table, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.storage.tables.base import Row, table_of
from rftd.storage.tables.progress import Meta
from rftd.storage.writer import read_positions
from rftd.streams.chain import Heads

_ROWS_AT_ONCE: Final = 2000
_encode: Final = msgspec.msgpack.Encoder().encode


class Digests(msgspec.Struct, frozen=True):
    """sha256 of each table at some positions of the log."""

    positions: Heads
    tables: dict[str, str]

    @property
    def total(self) -> str:
        """One sha256 over all tables."""
        return sha256(_encode(sorted(self.tables.items()))).hexdigest()


async def digest(engine: AsyncEngine) -> Digests:
    """Digests of every table, seen at one moment even while a projector writes."""
    async with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execution_options(isolation_level="REPEATABLE READ")
            # Rows come in the order of the key's index, from the first on, however large the table.
            await connection.execute(text("SET LOCAL enable_sort = off"))
        positions = await read_positions(connection)
        tables = (table for table in Row.metadata.sorted_tables if table is not table_of(Meta))
        return Digests(positions, {str(table.name): await _digest_of(connection, table) for table in tables})


async def _digest_of(connection: AsyncConnection, table: Table) -> str:
    # Text is ordered by its bytes on both databases: see `tables.base`.
    statement = select(table).order_by(*table.primary_key.columns)
    hasher = sha256(_encode([str(column.name) for column in table.columns]))
    floats = [place for place, column in enumerate(table.columns) if isinstance(column.type, Float)]
    async with connection.stream(statement) as rows:
        async for chunk in rows.partitions(_ROWS_AT_ONCE):
            hasher.update(_encode([_canonical(row, floats) for row in chunk]))
    return hasher.hexdigest()


def _canonical(row: Iterable[Any], floats: Sequence[int]) -> list[Any]:
    values = list(row)
    for place in floats:
        if values[place] is not None:
            values[place] += 0.0  # makes -0.0, which SQLite does not keep, 0.0
    return values
