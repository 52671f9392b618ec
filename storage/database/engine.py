"""Opens the database of the projections: a SQLite file, or Postgres by URL. The log can rebuild the whole content."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Dialect, Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import DataError as RefusedDataError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from rftd.ops import limits
from rftd.ops.errors import UsageError
from rftd.storage.database.connection_pool import ConnectionPool
from rftd.storage.database.postgres import connector

_NARROW: Final = f"cache_size=-{limits.READER_CACHE_KIB}"
"""SQLite pragma of the page cache of a connection for reading, negative for a size in KiB."""
BUSY_TIMEOUT: Final = "busy_timeout=10000"
"""SQLite pragma of the wait for a lock: 10,000 milliseconds."""
_PRAGMAS: Final = (
    "journal_mode=WAL",
    # A power cut may lose the newest commits as a whole: rows and positions together, to be filled in again from the
    # log.
    "synchronous=NORMAL",
    BUSY_TIMEOUT,
    # Each connection has a page cache besides the operating system's: reads cost little without a large cache. Sorts
    # and groupings beyond the cache go to temporary files: in memory, temporary data would be as large as the history.
    _NARROW,
    # In pages of 4 KiB: a page changed by several transactions is copied into the database file once.
    "wal_autocheckpoint=4000",
)
"""SQLite pragmas applied to every new connection."""
_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
"""SQLAlchemy's driver for each scheme accepted in the URL of the state database."""
_FILE_POOL: Final[dict[str, Any]] = {
    "poolclass": ConnectionPool,
    "pool_size": limits.SQLITE_POOL_CONNECTIONS,
    "max_overflow": 0,
    "pool_timeout": limits.SQLITE_POOL_WAIT_S,
}
"""Options of the connection pool for a SQLite file."""
_REFUSED_CLASSES: Final = ("22", "23", "54")
"""SQLSTATE classes: data exception, constraint violation, program limit exceeded."""


def sqlite_url(path: Path) -> str:
    """Returns the SQLAlchemy URL of a SQLite file, for connections through aiosqlite."""
    return f"sqlite+aiosqlite:///{path}"


def open_database(url: str) -> AsyncEngine:
    """Returns an engine for the database at `url` without connecting yet. Raises UsageError for an unreadable URL.

    Accepts `sqlite:///PATH`, or `postgresql://USER@HOST:5432/DATABASE` with asyncpg's options after a `?`:
    `host=/FOLDER` of a Unix socket, `sslmode=verify-full`, `sslrootcert=FILE`, `passfile=FILE`,
    `target_session_attrs=primary`. The password comes from PGPASSWORD, from PGPASSFILE (else ~/.pgpass), or from the
    URL, which then belongs in an environment variable; no error or log line shows the password. The tables lie in the
    schema `rftd` of the database. A connection pooler in between must pool sessions, not transactions. Use of the
    engine raises UnreachableError for an unresponsive server or a refused connection.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Without the cause, because of a possibly quoted password.
        fix = "sqlite:///PATH or postgresql://..."
        raise UsageError("the state database's URL cannot be read", fix=fix) from None
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise UsageError(f"no state database of kind {parsed.drivername!r}", fix="use sqlite:/// or postgresql://")
    parsed = parsed.set(drivername=driver)
    return _sqlite(parsed) if driver.startswith("sqlite") else _postgres(parsed)


def is_refused(error: BaseException) -> bool:
    """True if the database cannot store a value of a record, so that any retry would fail again."""
    if isinstance(error, OverflowError | RefusedDataError | IntegrityError):
        return True
    # A broken connection says nothing about the values: dead-lettering a record then would lose the record for ever.
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    # asyncpg detects a value of a wrong type.
    return state[:2] in _REFUSED_CLASSES if state else isinstance(getattr(error.orig, "__cause__", None), ValueError)


def _postgres(url: URL) -> AsyncEngine:
    # A restarted server leaves dead connections in the pool: hence the ping.
    """Returns an engine for Postgres, with bounded pool and waits."""
    return create_async_engine(
        url,
        async_creator=connector(url),
        poolclass=ConnectionPool,
        pool_pre_ping=True,
        pool_size=limits.DATABASE_POOL_CONNECTIONS,
        max_overflow=0,
        pool_timeout=limits.DATABASE_POOL_WAIT_S,
        hide_parameters=True,
    )


def _sqlite(url: URL) -> AsyncEngine:
    # In-memory tables belong to a single connection, for which SQLAlchemy uses another pool.
    """Returns an engine for a SQLite file, or for tables in memory."""
    in_file = url.database not in (None, "", ":memory:")
    engine = create_async_engine(url, hide_parameters=True, **(_FILE_POOL if in_file else {}))
    _tune(engine.sync_engine)
    return engine


async def widen(connection: AsyncConnection, *, bulk: bool) -> None:
    """Enlarges the page cache of a SQLite connection for writing: `limits.BULK_CACHE_KIB` for `bulk` writes, else
    `limits.WRITER_CACHE_KIB`.

    Keys are random, so a transaction changes many pages; pages in the cache are written only once.
    """
    await connection.exec_driver_sql(f"PRAGMA cache_size=-{limits.BULK_CACHE_KIB if bulk else limits.WRITER_CACHE_KIB}")
    await connection.rollback()


async def narrow(connection: AsyncConnection) -> None:
    """Sets the page cache of a SQLite connection back to the size for readers."""
    await connection.exec_driver_sql(f"PRAGMA {_NARROW}")
    await connection.rollback()


class _Opening:
    """Factory of a SQLite connection opened in aiosqlite's thread and closed if the caller was cancelled meanwhile.

    A connection refers to itself through the statement cache: an abandoned connection stays open until the cyclic
    garbage is collected.
    """

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        """The opened connection; None before."""
        self._abandoned = False
        """True once the caller was cancelled."""

    def __call__(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Opens the connection, in aiosqlite's thread, and applies the pragmas."""
        connection = sqlite3.Connection(*arguments, **options)
        try:
            # Transactions begin where SQLAlchemy says, so that several reads see one snapshot; Python's driver would
            # begin a transaction only before the first write.
            connection.isolation_level = None
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if self._abandoned:
            connection.close()
        return connection

    def abandon(self) -> None:
        """Closes the connection, now or as soon as opened."""
        self._abandoned = True
        if self._connection is not None:
            self._connection.close()


def _tune(engine: Engine) -> None:
    """Registers the listeners that open connections and begin transactions of SQLite."""

    @event.listens_for(engine, "do_connect")
    def opened(dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]) -> DBAPIConnection:
        opening = _Opening()
        try:
            return dialect.connect(*arguments, **options, factory=opening)
        except BaseException:
            opening.abandon()
            raise

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        dbapi: Any = connection.connection.dbapi_connection
        dbapi.run_async(
            lambda driver: driver.execute("BEGIN")
        )  # one visit to the connection's thread instead of the three of a cursor
