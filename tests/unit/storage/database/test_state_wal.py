"""The write-ahead file of the tables does not grow for ever while somebody always reads."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.sole_writer import SoleWriter

pytestmark = pytest.mark.anyio
BOUND_BYTES = 1024 * 1024
READ_S = 0.02


async def read_in_turn(engine: AsyncEngine, ready: asyncio.Event) -> None:
    """Two connections, one of which has a transaction open at any moment."""
    while True:
        async with engine.connect() as connection:
            await connection.scalar(text("SELECT COUNT(*) FROM rows"))
            ready.set()
            await asyncio.sleep(READ_S)  # as long as somebody looks at a page


async def test_a_file_that_is_always_read_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_WAL_SIZE_BYTES", BOUND_BYTES)
    monkeypatch.setattr("rftd.storage.projector.sole_writer._TRUNCATE_INTERVAL_S", 0.0)
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    writer, wal, ready = SoleWriter(engine, clock=SystemClock()), tmp_path / "state.db-wal", asyncio.Event()
    writer.keeps = True
    async with writer.transaction() as connection:
        await connection.execute(text("CREATE TABLE rows (value BLOB)"))
    sizes = []
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read_in_turn(engine, ready)) for _ in range(3)]
        await ready.wait()
        for _ in range(100):
            async with writer.transaction() as connection:
                await connection.execute(text("INSERT INTO rows VALUES (zeroblob(200000))"))
            sizes.append(wal.stat().st_size)
        for reader in readers:
            reader.cancel()
    await writer.close()
    await engine.dispose()
    assert any(later < earlier for earlier, later in pairwise(sizes)), "it was never emptied"
    assert max(sizes) < 4 * BOUND_BYTES, "of 20 MB that were written"


async def test_a_reader_that_stays_holds_up_neither_writer_nor_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_WAL_SIZE_BYTES", BOUND_BYTES)
    monkeypatch.setattr("rftd.storage.projector.sole_writer._SHORTEN_WAIT_MS", 50)
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    writer = SoleWriter(engine, clock=SystemClock())
    writer.keeps = True
    async with writer.transaction() as connection:
        await connection.execute(text("CREATE TABLE rows (value BLOB)"))
    async with engine.connect() as reader:
        assert await reader.scalar(text("SELECT COUNT(*) FROM rows")) == 0
        for _ in range(10):
            async with writer.transaction() as connection:
                await connection.execute(text("INSERT INTO rows VALUES (zeroblob(200000))"))
        assert await reader.scalar(text("SELECT COUNT(*) FROM rows")) == 0, "one snapshot"
    async with writer.transaction() as connection:
        assert await connection.scalar(text("SELECT COUNT(*) FROM rows")) == 10
        assert await connection.scalar(text("PRAGMA busy_timeout")) == 10000
    await writer.close()
    await engine.dispose()
