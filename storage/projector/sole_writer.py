"""`SoleWriter`, the only writing connection: on Postgres, an advisory lock of the session excludes a second projector.

Only the writer has a large page cache for tables in a SQLite file: with a large cache for every reader's connection,
the daemon would keep the newest part of the file several times.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, UnreachableError
from rftd.storage.database.engine import BUSY_TIMEOUT, narrow, widen
from rftd.storage.database.postgres import forbidden

_LOCK: Final = 0x72667464
"""The key of the advisory lock, shared by the sessions of one database."""
_POLL_S: Final = 0.25
"""Seconds between two attempts to take the lock."""
_SHORTEN_WAIT_MS: Final = 3000
"""Wait for readers before truncation, in milliseconds per multiple of the write-ahead file's bound
`STATE_WAL_SIZE_BYTES`.
"""
_SHORTEN_WAIT_MOST_MS: Final = 60_000
"""Longest wait for readers before truncation, in milliseconds, however long the write-ahead file is."""
_TRUNCATE_INTERVAL_S: Final = 10.0
"""Minimum number of seconds between two attempts to truncate the write-ahead file."""
_HOLDER: Final = """
SELECT client_addr, pid, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND objid = :lock AND granted
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Query for the session with the lock."""


class SoleWriter:
    """The transactions of a database's only projector. An error ends the connection, together with the lock.

    (For a SQLite file, the lock of the daemon's folder is enough.)
    """

    def __init__(self, engine: AsyncEngine, *, clock: Clock) -> None:
        """`engine` is the database, `clock` times the waits."""
        self._engine = engine
        self._clock = clock
        self._connection: AsyncConnection | None = None
        """The open connection; None without one."""
        self._wal = Path(f"{engine.url.database}-wal") if engine.dialect.name == "sqlite" else None
        """Write-ahead file of SQLite; None on Postgres."""
        self._shorten_at_s = 0.0
        """Earliest monotonic time of the next truncation."""
        self.keeps = False
        """True while a connection to a SQLite file is kept between transactions, with its cache, until `close`."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Context of a transaction, committed at the end.

        Raises ConflictError while another projector uses the database, and for a damaged SQLite file or another kind of
        file.
        """
        served = self._engine.dialect.name == "postgresql"
        try:
            if self._connection is None:
                self._connection = await self._engine.connect()
                await (self._lock(self._connection) if served else widen(self._connection, bulk=not self.keeps))
            # The lock belongs to the session, not to the transaction: lasting over all transactions, and ending with
            # the connection in any case.
            async with self._connection.begin():
                yield self._connection
            lengths = self._wal_excess()
            if lengths > 1 and self._clock.monotonic_s() >= self._shorten_at_s:
                await self._truncate_wal(self._connection, lengths)
        except BaseException as error:
            await self._end_connection(sound=False)
            if served and isinstance(error, DBAPIError):
                _explain(error, self._engine)
            elif not served and isinstance(error, DatabaseError):
                _explain_damage(error, self._engine)
            raise
        if not served and not self.keeps:
            await self.close()

    async def is_lost(self) -> bool:
        """True if the server ended the connection since the last transaction."""
        if self._connection is None or self._engine.dialect.name != "postgresql":
            return False
        driver = (await self._connection.get_raw_connection()).driver_connection
        return driver is None or bool(driver.is_closed())

    def _wal_excess(self) -> float:
        """Returns the size of the write-ahead file in units of the bound."""
        try:
            return self._wal.stat().st_size / limits.STATE_WAL_SIZE_BYTES if self._wal is not None else 0.0
        except OSError:
            return 0.0  # for example a database in memory

    async def _truncate_wal(self, connection: AsyncConnection, lengths: float) -> None:
        """Truncates the write-ahead file.

        SQLite's own checkpoints never wait for readers, so the file would grow for ever under constant reads. This
        checkpoint waits for the present readers, longer the longer the file is, and is tried again later.
        """
        wait_ms = min(round(_SHORTEN_WAIT_MS * lengths), _SHORTEN_WAIT_MOST_MS)
        self._shorten_at_s = self._clock.monotonic_s() + _TRUNCATE_INTERVAL_S
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        for statement in (f"busy_timeout={wait_ms}", "wal_checkpoint(TRUNCATE)", BUSY_TIMEOUT):
            async with driver.execute(f"PRAGMA {statement}"):
                pass

    async def close(self) -> None:
        """Releases the database; the next transaction reconnects. Idempotent."""
        await self._end_connection(sound=True)

    async def _end_connection(self, *, sound: bool) -> None:
        """Ends the connection; after a failed or cancelled statement, the connection is discarded."""
        connection = self._connection
        self._connection = None
        if connection is None:
            return
        try:
            # On Postgres even a sound connection ends with the session: a pooled connection would keep the lock.
            if sound and self._engine.dialect.name != "postgresql":
                await narrow(connection)
            else:
                await connection.invalidate()
        except SQLAlchemyError:
            await connection.invalidate()
        finally:
            await connection.close()  # back to the pool, or, if invalidated, closed

    async def _lock(self, connection: AsyncConnection) -> None:
        """Takes the advisory lock of the database. Raises ConflictError if a rival keeps it."""
        waited_s = 0.0
        while not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            holder = (await connection.execute(text(_HOLDER), {"lock": _LOCK})).first()
            await connection.rollback()
            # The server process of a daemon killed a moment ago may need some seconds to notice.
            if waited_s >= limits.PROJECTOR_RIVAL_S:
                who = f": process {holder.pid} of the server, client {holder.client_addr or 'local'}" if holder else ""
                raise ConflictError(
                    f"another daemon keeps the tables of this database up to date{who}",
                    fix="stop that daemon, or give each its own database",
                )
            await self._clock.sleep(_POLL_S)
            waited_s += _POLL_S
        await connection.commit()


def _explain(error: DBAPIError, engine: AsyncEngine) -> None:
    """Raises rftd's error for a refusal by Postgres, if there is one."""
    state = getattr(error.orig, "sqlstate", None)
    if state == "42501":
        raise forbidden(engine.url) from error
    if state == "25006":
        raise UnreachableError(
            "Postgres no longer accepts writes: the server became read-only", fix="name the primary in the URL"
        ) from error


def _explain_damage(error: DatabaseError, engine: AsyncEngine) -> None:
    """Raises ConflictError for a damaged SQLite file."""
    if "malformed" in str(error.orig) or "not a database" in str(error.orig):
        raise ConflictError(
            "the state database is damaged",
            where=engine.url.database,
            fix="stop rftd and delete the file: it is filled again from the log",
        ) from error
