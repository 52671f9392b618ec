"""One experiment's digest: of its tables, without what differs between two logs that hold the same history.

Left out are places in the log, paths of the machine, and dead letters, whose key is a place; the order of rows and
everything else counts. It is made in a database of its own, by the same projector as the live tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.clock import Clock
from rftd.storage.database import open_database, sqlite_url
from rftd.storage.projector import Projector
from rftd.storage.tables.base import Row, is_local
from rftd.streams.chain import Heads
from rftd.streams.log import EventLog

_ROWS_AT_ONCE: Final = 2000
_encode: Final = msgspec.msgpack.Encoder().encode


async def experiment_digest(own: EventLog, *, clock: Clock, until: Heads | None = None) -> str:
    """sha256 over the tables of a log that shows one experiment's records only, up to `until` or its heads."""
    with tempfile.TemporaryDirectory(prefix="rftd-digest-") as folder:
        engine = open_database(sqlite_url(Path(folder) / "state.db"))
        try:
            await Projector(own, engine, clock=clock).catch_up(until)
            async with engine.connect() as connection:
                tables = [table for table in Row.metadata.sorted_tables if not is_local(table)]
                found = sorted([(str(table.name), await _digest_of(connection, table)) for table in tables])
        finally:
            await engine.dispose()
    return sha256(_encode(found)).hexdigest()


async def _digest_of(connection: AsyncConnection, table: Table) -> str:
    columns = [column for column in table.columns if not is_local(column)]
    hasher = sha256(_encode([str(column.name) for column in columns]))
    # Keys that are offsets are left out too, and still give the order: that is the same in every log.
    statement = select(*columns).order_by(*table.primary_key.columns)
    async with connection.stream(statement) as rows:
        async for chunk in rows.partitions(_ROWS_AT_ONCE):
            hasher.update(_encode([_canonical(row) for row in chunk]))
    return hasher.hexdigest()


def _canonical(row: Iterable[object]) -> list[object]:
    return [value + 0.0 if isinstance(value, float) else value for value in row]
