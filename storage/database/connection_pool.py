"""`ConnectionPool`: a bounded pool of database connections with closing of idle connections."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn
from sqlalchemy.util.queue import Empty

from rftd.ops import limits
from rftd.ops.clock import Clock


class ConnectionPool(AsyncAdaptedQueuePool):
    """SQLAlchemy's queue pool plus closing of idle connections; the base class keeps every connection until the pool
    ends.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most_in_use = 0
        """Peak number of connections in use at once since the last `close_idle`, beginning with those in use at that
        call.
        """

    def close_idle(self) -> None:
        """Closes the connections beyond the peak number in use at once since the previous call."""
        surplus = self.checkedin() + self.checkedout() - self._most_in_use
        self._most_in_use = self.checkedout()
        for _ in range(surplus):
            try:
                record = self._pool.get(False)
            except Empty:  # all connections are in use again
                return
            # Decremented before the slow closing: a reader may open another connection meanwhile.
            self._dec_overflow()
            record.close()

    def _do_get(self) -> ConnectionPoolEntry:
        """Takes a connection, and notes the peak number in use."""
        record = super()._do_get()
        self._most_in_use = max(self._most_in_use, self.checkedout())
        return record


async def close_idle_connections(engine: AsyncEngine, clock: Clock) -> None:
    """Closes an engine's idle connections periodically, until cancelled.

    Each open connection to a SQLite file costs a thread, open files and a page cache.
    """
    pool = engine.pool
    while True:
        await clock.sleep(limits.DATABASE_IDLE_S)
        if isinstance(pool, ConnectionPool):
            await greenlet_spawn(pool.close_idle)
