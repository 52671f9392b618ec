"""The database of the projections: a SQLite file, or Postgres by its URL. It holds nothing that the log does not."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, MetaData, Table, event, insert, inspect, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from rftd.ops.errors import ConflictError, UsageError
from rftd.storage.projections.projection import Projection
from rftd.storage.tables.base import Row, table_of
from rftd.storage.tables.progress import Meta

_PRAGMAS: Final = (
    "journal_mode=WAL",
    # A power cut may take the newest commits, whole: rows and positions together, so the log fills them in again.
    "synchronous=NORMAL",
    "busy_timeout=10000",
    "cache_size=-65536",
    "temp_store=MEMORY",
)
_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite+aiosqlite:///{path}"


def open_database(url: str) -> AsyncEngine:
    """Connections to the database at `url` (sqlite or postgresql); nothing is opened yet. Raises UsageError."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError("the state database's URL cannot be read", fix="sqlite:///PATH or postgresql://...") from error
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise UsageError(f"no state database of kind {parsed.drivername!r}", fix="use sqlite:/// or postgresql://")
    # A server that was restarted left dead connections in the pool.
    engine = create_async_engine(parsed.set(drivername=driver), pool_pre_ping=not driver.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        _tune(engine.sync_engine)
    return engine


def _tune(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        # Transactions begin where SQLAlchemy says, so that several reads see one snapshot.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def schema_hash(projections: Iterable[Projection]) -> str:
    """sha256 over the tables' definitions and the projections' names and versions; equal on every database."""
    dialect = sqlite.dialect()
    definitions = [f"{projection.name} {projection.version}" for projection in projections]
    for table in Row.metadata.sorted_tables:
        definitions.append(str(CreateTable(table).compile(dialect=dialect)))
        definitions.extend(sorted(str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes))
    return sha256("\n".join(definitions).encode()).hexdigest()


async def prepare(engine: AsyncEngine, projections: Iterable[Projection]) -> bool:
    """Makes the tables; True if they were made anew and must be filled from the log.

    Tables of another release (another schema hash) are dropped: they hold nothing that the log does not. Raises
    ConflictError for a SQLite file that is damaged or no database.
    """
    wanted = schema_hash(projections)
    try:
        return await _prepare(engine, wanted)
    except DatabaseError as error:
        if "malformed" not in str(error) and "not a database" not in str(error):
            raise
        raise ConflictError(
            "the state database is damaged",
            where=engine.url.database,
            fix="stop rftd and delete the file: it is filled again from the log",
        ) from error


async def _prepare(engine: AsyncEngine, wanted: str) -> bool:
    async with engine.begin() as connection:
        if await _stored(connection, "schema") == wanted:
            return False
        await _drop(connection)
        await connection.run_sync(Row.metadata.create_all)
        tables = sorted(str(table.name) for table in Row.metadata.sorted_tables)
        await connection.execute(
            insert(table_of(Meta)),
            [
                {"name": "schema", "value": wanted},
                {"name": "tables", "value": msgspec.json.encode(tables).decode()},
            ],
        )
    return True


async def reset(engine: AsyncEngine) -> None:
    """Drops every table of the projections; the next `prepare` makes them anew."""
    async with engine.begin() as connection:
        await _drop(connection)


async def _stored(connection: AsyncConnection, name: str) -> str | None:
    if not await connection.run_sync(lambda sync: inspect(sync).has_table("meta")):
        return None
    meta = table_of(Meta)
    value: str | None = await connection.scalar(select(meta.c.value).where(meta.c.name == name))
    return value


async def _drop(connection: AsyncConnection) -> None:
    """Only tables that are ours by name: a Postgres database may hold others."""
    names = {str(table.name) for table in Row.metadata.sorted_tables}
    if (stored := await _stored(connection, "tables")) is not None:
        names.update(msgspec.json.decode(stored, type=list[str]))
    for name in sorted(names):
        await connection.execute(DropTable(Table(name, MetaData()), if_exists=True))
