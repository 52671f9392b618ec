# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""SQL rows by lists of keys: few statements for many nodes, identical on both databases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

KEYS_PER_STATEMENT: Final = 400
"""Maximum keys in one statement, below SQLite's oldest limit on parameters (999)."""
COUNTED: Final = 2_000
"""The highest count: counting further would read the whole range of an index."""


class TableSnapshot:
    """A consistent snapshot of the tables, read by SQL text."""

    def __init__(self, connection: AsyncConnection) -> None:
        """`connection` is in a transaction with one snapshot."""
        self._connection = connection

    async def rows(self, sql: str, **parameters: object) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement; ids as bytes on every database."""
        cursor = await self._connection.execute(text(sql), parameters)
        return [tuple(bytes(cell) if isinstance(cell, memoryview) else cell for cell in row) for row in cursor]

    async def among(self, sql: str, keys: Iterable[object], **parameters: object) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement containing `{keys}`, for all of `keys`, in as many statements as needed."""
        rows: list[tuple[Any, ...]] = []
        all_keys = list(keys)
        for first in range(0, len(all_keys), KEYS_PER_STATEMENT):
            names = {f"key{number}": key for number, key in enumerate(all_keys[first : first + KEYS_PER_STATEMENT])}
            listed = ", ".join(f":{name}" for name in names)
            rows += await self.rows(sql.replace("{keys}", listed), **names, **parameters)
        return rows

    async def count(self, source: str, **parameters: object) -> int:
        """Returns the number of rows of `FROM source`, up to `COUNTED`."""
        [(count,)] = await self.rows(f"SELECT COUNT(*) FROM (SELECT 1 FROM {source} LIMIT {COUNTED}) s", **parameters)
        return int(count)
