"""`SoleWriter`, the one connection that writes: on Postgres a lock of the session keeps a second projector out.

It alone has a large page cache, where the tables are in a SQLite file: with one for each connection that ever read, the
daemon would keep the newest part of the file several times.
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
"""The key of the advisory lock, which the sessions of one database share."""
_POLL_S: Final = 0.25
_SHORTEN_WAIT_MS: Final = 3000
_SHORTEN_WAIT_MOST_MS: Final = 60_000
_SHORTEN_AGAIN_S: Final = 10.0
_HOLDER: Final = """
SELECT client_addr, pid, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND objid = :lock AND granted
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class SoleWriter:
    """The transactions of the only projector of a database. An error in one ends the connection, and with it its lock.

    (The lock of the daemon's folder keeps a SQLite file.)
    """

    def __init__(self, engine: AsyncEngine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._held: AsyncConnection | None = None
        self._wal = Path(f"{engine.url.database}-wal") if engine.dialect.name == "sqlite" else None
        self._shorten_at_s = 0.0
        self.keeps = False
        """True while a connection to a SQLite file is kept between transactions, with its cache, until `close`."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block.

        Raises ConflictError while another projector uses the database, and for a SQLite file that is damaged or none.
        """
        served = self._engine.dialect.name == "postgresql"
        try:
            if self._held is None:
                self._held = await self._engine.connect()
                await (self._lock(self._held) if served else widen(self._held, bulk=not self.keeps))
            # The lock is the session's, not the transaction's: it lasts over all of them, and ends with the connection
            # however that ends.
            async with self._held.begin():
                yield self._held
            lengths = self._wal_lengths()
            if lengths > 1 and self._clock.monotonic_s() >= self._shorten_at_s:
                await self._shorten(self._held, lengths)
        except BaseException as error:
            await self._end(sound=False)
            if served and isinstance(error, DBAPIError):
                _explain(error, self._engine)
            elif not served and isinstance(error, DatabaseError):
                _explain_damage(error, self._engine)
            raise
        if not served and not self.keeps:
            await self.close()

    def _wal_lengths(self) -> float:
        """The size of the write-ahead file in units of its bound."""
        try:
            return self._wal.stat().st_size / limits.STATE_WAL_SIZE_BYTES if self._wal is not None else 0.0
        except OSError:
            return 0.0  # of a database in memory, for one

    async def _shorten(self, connection: AsyncConnection, lengths: float) -> None:
        """Empties the write-ahead file.

        SQLite's own checkpoints wait for nobody, so the file would grow for ever while somebody always reads. This one
        waits for the present readers, the more patiently the longer the file is, and is tried again later.
        """
        wait_ms = min(round(_SHORTEN_WAIT_MS * lengths), _SHORTEN_WAIT_MOST_MS)
        self._shorten_at_s = self._clock.monotonic_s() + _SHORTEN_AGAIN_S
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        for statement in (f"busy_timeout={wait_ms}", "wal_checkpoint(TRUNCATE)", BUSY_TIMEOUT):
            async with driver.execute(f"PRAGMA {statement}"):
                pass

    async def close(self) -> None:
        """Lets go of the database; the next transaction takes it again. Idempotent."""
        await self._end(sound=True)

    async def _end(self, *, sound: bool) -> None:
        """Ends the connection; one on which a statement failed or was cancelled is used for nothing else."""
        held = self._held
        self._held = None
        if held is None:
            return
        try:
            # On Postgres even a sound one ends with its session: in the pool it would keep the lock.
            if sound and self._engine.dialect.name != "postgresql":
                await narrow(held)
            else:
                await held.invalidate()
        except SQLAlchemyError:
            await held.invalidate()
        finally:
            await held.close()  # back to the pool, or, invalidated, for good

    async def _lock(self, connection: AsyncConnection) -> None:
        asked = 0.0
        while not await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            holder = (await connection.execute(text(_HOLDER), {"lock": _LOCK})).first()
            await connection.rollback()
            # A daemon that was killed a moment ago: its server process may need some seconds to notice.
            if asked >= limits.PROJECTOR_RIVAL_S:
                who = f": process {holder.pid} of the server, client {holder.client_addr or 'local'}" if holder else ""
                raise ConflictError(
                    f"another daemon keeps the tables of this database up to date{who}",
                    fix="stop that daemon, or give each its own database",
                )
            await self._clock.sleep(_POLL_S)
            asked += _POLL_S
        await connection.commit()


def _explain(error: DBAPIError, engine: AsyncEngine) -> None:
    state = getattr(error.orig, "sqlstate", None)
    if state == "42501":
        raise forbidden(engine.url) from error
    if state == "25006":
        raise UnreachableError(
            "Postgres takes no writes any more: it became read-only", fix="name the primary in the URL"
        ) from error


def _explain_damage(error: DatabaseError, engine: AsyncEngine) -> None:
    if "malformed" in str(error.orig) or "not a database" in str(error.orig):
        raise ConflictError(
            "the state database is damaged",
            where=engine.url.database,
            fix="stop rftd and delete the file: it is filled again from the log",
        ) from error
