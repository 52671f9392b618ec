"""`TableStatistics`: the statistics from which Postgres plans queries, made anew each time the tables have doubled.

Without them Postgres takes each experience for one of many items with the same id, and reads all batches of an
experiment for each of its experiences: minutes for a long run. Its own autovacuum looks once a minute, if it is on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops import limits
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.errors import RftdError
from rftd.storage.database.tables.base import Row

FIRST_RECORDS: Final = 1000
"""Tables of fewer records are read fast however they are read."""

_logger = logging.getLogger("rftd.projector")


class TableStatistics:
    """The statistics of one database's tables. SQLite plans well without, so nothing is done there."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._served = engine.dialect.name == "postgresql"
        self._records = 0
        self._due_records = FIRST_RECORDS
        self._due = asyncio.Event()

    def begin_anew(self) -> None:
        """Forgets what was measured: the tables are empty."""
        self._records = 0
        self._due_records = FIRST_RECORDS
        self._due.clear()

    def grew(self, records: int) -> None:
        """Takes note of how many records the tables hold now."""
        self._records = records
        if self._served and records >= self._due_records:
            self._due.set()

    async def renew(self) -> None:
        """Measures the tables if they have doubled since they were measured. A failure is logged, and tried again."""
        if not self._due.is_set():
            return
        self._due.clear()
        records = self._records
        try:
            async with asyncio.timeout(limits.DATABASE_STATEMENT_TIMEOUT_S):
                await self._measure()
        except (SQLAlchemyError, RftdError, OSError) as error:  # a TimeoutError is an OSError
            end_if_cancelled()  # a cancelled statement may end in an error of SQLAlchemy's: see there
            _logger.warning("queries may be slow, their statistics are old: %s", str(error).partition("\n")[0])
            self._due_records = records + FIRST_RECORDS
        else:
            self._due_records = 2 * records

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """A block beside which the tables are measured whenever they have doubled."""
        renewing = asyncio.ensure_future(self._keep())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))

    async def _keep(self) -> None:
        while True:
            await self._due.wait()
            await self.renew()

    async def _measure(self) -> None:
        """Reads a sample of each table, outside of any transaction; a table that somebody has locked is left out.

        Whoever holds such a lock changes the table, or measures it: another daemon, or autovacuum.
        """
        names = ", ".join(f'"{table.name}"' for table in Row.metadata.sorted_tables)
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(f"ANALYZE (SKIP_LOCKED) {names}"))
