"""`TableStatistics`: the planner statistics of Postgres, renewed each time the tables have doubled.

Without statistics, Postgres assumes that each experience has many batch items and reads all batches of an experiment
for every experience: minutes for a long run. Postgres' autovacuum runs only once a minute, if enabled.
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
"""Number of records from which statistics matter; smaller tables are fast under any query plan."""

_logger = logging.getLogger("rftd.projector")
"""Logger shared with the projector."""


class TableStatistics:
    """Keeps the statistics of one database's tables fresh; a no-op on SQLite, which plans well without statistics."""

    def __init__(self, engine: AsyncEngine) -> None:
        """`engine` is the database."""
        self._engine = engine
        self._served = engine.dialect.name == "postgresql"
        """True for a database of Postgres, the only kind with statistics kept by this class."""
        self._records = 0
        """Number of the log's records in the tables, as last reported to `grew`."""
        self._due_records = FIRST_RECORDS
        """Number of records in the tables at which the next renewal is due: twice the last measured number, or
        `FIRST_RECORDS` more after a failure.
        """
        self._due = asyncio.Event()
        """Set when statistics are to be renewed."""

    def begin_anew(self) -> None:
        """Resets the measurements, for tables that are empty again."""
        self._records = 0
        self._due_records = FIRST_RECORDS
        self._due.clear()

    def grew(self, records: int) -> None:
        """Records the number of records now in the tables, and marks a measurement as due once they have doubled."""
        self._records = records
        if self._served and records >= self._due_records:
            self._due.set()

    async def renew(self) -> None:
        """Runs ANALYZE if the tables have doubled since the last time. A failure is logged and retried later."""
        if not self._due.is_set():
            return
        self._due.clear()
        records = self._records
        try:
            async with asyncio.timeout(limits.DATABASE_STATEMENT_TIMEOUT_S):
                await self._measure()
        except (SQLAlchemyError, RftdError, OSError) as error:  # TimeoutError is a subclass of OSError
            end_if_cancelled()  # a cancelled statement may surface as an error of SQLAlchemy: see `end_if_cancelled`
            _logger.warning("queries may be slow, their statistics are old: %s", str(error).partition("\n")[0])
            self._due_records = records + FIRST_RECORDS
        else:
            self._due_records = 2 * records

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Context that renews the statistics in the background whenever the tables have doubled in size."""
        renewing = asyncio.ensure_future(self._keep())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))

    async def _keep(self) -> None:
        """Renews the statistics whenever due, until cancelled."""
        while True:
            await self._due.wait()
            await self.renew()

    async def _measure(self) -> None:
        """Samples each table, outside of any transaction, skipping locked tables.

        The holder of a lock changes or measures the table already: another daemon, or autovacuum.
        """
        names = ", ".join(f'"{table.name}"' for table in Row.metadata.sorted_tables)
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(f"ANALYZE (SKIP_LOCKED) {names}"))
