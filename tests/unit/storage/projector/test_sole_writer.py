"""The one connection that writes has a large page cache; those that read have a small one each."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.sole_writer import SoleWriter

pytestmark = pytest.mark.anyio


async def cache_kib(connection: AsyncConnection) -> int:
    return -int(await connection.scalar(text("PRAGMA cache_size")) or 0)


async def test_only_who_writes_keeps_many_pages(tmp_path: Path) -> None:
    """Ten readers of a large file cost the daemon ten times 64 MiB, and none of it ever went back."""
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    writer = SoleWriter(engine, clock=ManualClock())
    try:
        for keeps in (True, True, False, False):
            writer.keeps = keeps
            await writer.close()
            async with writer.transaction() as connection:
                wide = limits.WRITER_CACHE_KIB if keeps else limits.BULK_CACHE_KIB
                assert await cache_kib(connection) == wide
            async with engine.connect() as first, engine.connect() as second:
                assert [await cache_kib(each) for each in (first, second)] == [limits.READER_CACHE_KIB] * 2
        await writer.close()
        async with engine.connect() as first, engine.connect() as second, engine.connect() as third:
            assert [await cache_kib(each) for each in (first, second, third)] == [limits.READER_CACHE_KIB] * 3
        async with writer.transaction() as connection:
            assert await cache_kib(connection) == limits.BULK_CACHE_KIB
    finally:
        await writer.close()
        await engine.dispose()


async def test_the_caches_of_all_readers_together_are_small(tmp_path: Path) -> None:
    """With many clients as many connections are open as there may be, and each fills its cache as the tables grow."""
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        readers = [await stack.enter_async_context(engine.connect()) for _ in range(limits.SQLITE_POOL_CONNECTIONS)]
        caches_kib = [await cache_kib(reader) for reader in readers]
    assert sum(caches_kib) <= 8 * 1024
