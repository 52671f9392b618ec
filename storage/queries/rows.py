"""`fetch`: SQL rows made structs; values that the drivers give differently are made equal here.

Queries import SQLAlchemy for type checkers only: the command line reads the same rows from the daemon, and importing it
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

_IDS = frozenset({"id", "batch", "experience", "experiment", "group", "lease", "worker", "subject", "parent"})
_JSON = frozenset({"metrics", "labels", "config"})
_LISTS = frozenset({"best_kept"})


async def fetch(connection: AsyncConnection, kind: type[R], sql: str, **parameters: object) -> list[R]:
    """The rows of a query as structs whose fields are its columns: ids as text, JSON columns as values."""
    if connection.dialect.name == "sqlite":
        names, found = await visit(connection, lambda file: _read(file, sql, parameters))
    else:
        result = await connection.execute(_statement(sql), parameters)
        names = list(result.keys())
        found = list(result)
    rows = [{name: _value(name, value) for name, value in zip(names, row, strict=True)} for row in found]
    return converted(rows, list[kind], strict=False)  # type: ignore[valid-type]


async def fetch_one(connection: AsyncConnection, kind: type[R], sql: str, **parameters: object) -> R | None:
    """The first row, if there is one."""
    rows = await fetch(connection, kind, sql, **parameters)
    return rows[0] if rows else None


def _read(file: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> tuple[list[str], Sequence[Any]]:
    """The names of the columns, and the rows."""
    cursor = file.execute(sql, parameters)
    return [column[0] for column in cursor.description], cursor.fetchall()


@lru_cache(maxsize=256)
def _statement(sql: str) -> TextClause:
    """A statement, parsed once: parsing takes longer than a short query."""
    from sqlalchemy import text  # late, see above

    return text(sql)


def _value(name: str, value: Any) -> Any:
    if name in _LISTS:
        return [] if value is None else msgspec.json.decode(value)
    if value is None:
        return {} if name in _JSON else None
    # By its name: a driver gives ids as bytes or memoryview, JSON as text, and a column of either has no other type.
    if name in _IDS:
        return str(UUID(bytes=bytes(value)))
    if name in _JSON:
        return msgspec.json.decode(value)
    return value
