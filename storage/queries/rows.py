"""`fetch`: SQL rows converted to structs, with the differences between the drivers' values removed.

Queries import SQLAlchemy for type checkers only: the command line reads the same rows from the daemon, and the import
takes half a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from rftd.ops.decoding import converted
from rftd.storage.database.visit import visit

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection

R = TypeVar("R", bound=msgspec.Struct)
"""Struct type of the rows returned by a query."""

_IDS = frozenset({"id", "batch", "experience", "experiment", "group", "lease", "worker", "subject", "parent"})
"""Names of the columns with ids: 16 raw bytes, returned as text."""
_JSON = frozenset({"metrics", "labels", "config"})
"""Names of the columns with JSON objects, decoded; null becomes an empty mapping."""
_LISTS = frozenset({"best_kept"})
"""Names of the columns with JSON arrays, decoded; null becomes an empty list."""


async def fetch(connection: AsyncConnection, kind: type[R], sql: str, **parameters: object) -> list[R]:
    """Returns the rows of a query as structs with its columns as fields: ids as text, JSON columns decoded."""
    names, raw_rows = await fetch_raw(connection, sql, **parameters)
    rows = [{name: _plain(name, cell) for name, cell in zip(names, row, strict=True)} for row in raw_rows]
    return converted(rows, list[kind], strict=False)  # type: ignore[valid-type]


async def fetch_raw(
    connection: AsyncConnection, sql: str, **parameters: object
) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Returns the names of a query's columns, and the rows as the driver returns them."""
    if connection.dialect.name == "sqlite":
        return await visit(connection, lambda file: _read(file, sql, parameters))
    cursor = await connection.execute(_statement(sql), parameters)
    return list(cursor.keys()), list(cursor)


async def fetch_one(connection: AsyncConnection, kind: type[R], sql: str, **parameters: object) -> R | None:
    """Returns the first row of a query; None without rows."""
    rows = await fetch(connection, kind, sql, **parameters)
    return rows[0] if rows else None


def _read(file: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> tuple[list[str], Sequence[Any]]:
    """Returns the names of the columns, and the rows."""
    cursor = file.execute(sql, parameters)
    return [column[0] for column in cursor.description], cursor.fetchall()


@lru_cache(maxsize=256)
def _statement(sql: str) -> TextClause:
    """Returns the parsed statement, cached: parsing takes longer than a short query."""
    from sqlalchemy import text  # late, as explained in the module's docstring

    return text(sql)


def _plain(name: str, cell: Any) -> Any:
    """Returns a cell as plain data: ids as text, JSON decoded."""
    if name in _LISTS:
        return [] if cell is None else msgspec.json.decode(cell)
    if cell is None:
        return {} if name in _JSON else None
    # By its name: drivers return ids as bytes or memoryview and JSON as text, without a distinguishing column type.
    if name in _IDS:
        return str(UUID(bytes=bytes(cell)))
    if name in _JSON:
        return msgspec.json.decode(cell)
    return cell
