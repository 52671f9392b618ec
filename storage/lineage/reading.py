# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""SQL rows by lists of keys: few statements for many things, the same on both databases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

AT_ONCE: Final = 400
"""The keys in one statement, below SQLite's oldest bound on parameters (999)."""
COUNTED: Final = 2_000
"""The highest count: to count on would read the whole range of an index."""


class TableSnapshot:
    """One snapshot of the tables."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def rows(self, sql: str, **parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one statement; ids as bytes on every database."""
        result = await self._connection.execute(text(sql), parameters)
        return [tuple(bytes(cell) if isinstance(cell, memoryview) else cell for cell in row) for row in result]

    async def among(self, sql: str, keys: Iterable[object], **parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a statement with `{keys}` in it, for all of `keys`."""
        found: list[tuple[Any, ...]] = []
        wanted = list(keys)
        for first in range(0, len(wanted), AT_ONCE):
            names = {f"key{number}": key for number, key in enumerate(wanted[first : first + AT_ONCE])}
            listed = ", ".join(f":{name}" for name in names)
            found += await self.rows(sql.replace("{keys}", listed), **names, **parameters)
        return found

    async def count(self, source: str, **parameters: object) -> int:
        """The number of rows that `FROM source` has, up to `COUNTED`."""
        [(count,)] = await self.rows(f"SELECT COUNT(*) FROM (SELECT 1 FROM {source} LIMIT {COUNTED}) s", **parameters)
        return int(count)
