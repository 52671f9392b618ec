"""A daemon keeps the connections to its tables that it needs, not as many as it ever needed at once."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.storage.database.connection_pool import close_idle_connections
from rftd.storage.database.engine import open_database, sqlite_url

pytestmark = pytest.mark.anyio
BURST = 6


class LookedAtOnce(ManualClock):
    """A clock that lets whoever sleeps on it go on once for each `look`."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = asyncio.Semaphore(0)
        self._asleep = asyncio.Semaphore(0)

    async def sleep(self, delay_s: float) -> None:
        self._asleep.release()
        await self._looks.acquire()
        await super().sleep(delay_s)

    async def look(self) -> None:
        """Returns once the sleeper sleeps again."""
        await self._asleep.acquire()
        self._looks.release()
        await self._asleep.acquire()
        self._asleep.release()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def clock(engine: AsyncEngine) -> AsyncIterator[LookedAtOnce]:
    """The clock of a task that closes idle connections of the engine."""
    clock = LookedAtOnce()
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(close_idle_connections(engine, clock))
        yield clock
        closing.cancel()


async def read(connection: AsyncConnection) -> None:
    assert await connection.scalar(text("SELECT COUNT(*) FROM sqlite_master")) == 0


async def burst(engine: AsyncEngine) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(BURST):
            await read(await stack.enter_async_context(engine.connect()))


def open_connections(engine: AsyncEngine) -> int:
    """The connections by their files: SQLite gives each one a descriptor of the write-ahead file."""
    name = f"{engine.url.database}-wal"
    return sum(file.path == name for file in psutil.Process().open_files())


async def test_connections_that_nobody_needs_are_closed(engine: AsyncEngine, clock: LookedAtOnce) -> None:
    async with engine.connect() as kept:
        await read(kept)
        await burst(engine)
        await clock.look()
        assert open_connections(engine) == BURST + 1, "they were needed a moment ago"
        await clock.look()
        assert open_connections(engine) == 1
        await read(kept)
    await burst(engine)
    assert open_connections(engine) == BURST, "others are opened when they are needed"


async def test_connections_that_are_used_stay(engine: AsyncEngine, clock: LookedAtOnce) -> None:
    drivers = set()
    for _ in range(4):
        async with engine.connect() as one, engine.connect() as other:
            for connection in (one, other):
                await read(connection)
                drivers.add((await connection.get_raw_connection()).driver_connection)
        await clock.look()
    assert len(drivers) == 2


async def test_a_reader_beyond_the_bound_waits_for_its_turn(engine: AsyncEngine) -> None:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        readers = [await stack.enter_async_context(engine.connect()) for _ in range(limits.SQLITE_POOL_CONNECTIONS)]
        late = tasks.create_task(stack.enter_async_context(engine.connect()))
        for _ in range(5):
            for reader in readers:
                await read(reader)
        assert not late.done()
        assert open_connections(engine) == limits.SQLITE_POOL_CONNECTIONS
        await readers[0].close()
        await read(await late)


@pytest.mark.parametrize("cancelled", ["before it is open", "once it is open"])
async def test_a_connection_that_nobody_waits_for_any_more_is_closed(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, cancelled: str
) -> None:
    asked, may_open, opened = (threading.Event() for _ in range(3))
    connect = sqlite3.connect

    def slowly(*arguments: Any, **options: Any) -> sqlite3.Connection:
        asked.set()
        may_open.wait(30)
        connection: sqlite3.Connection = connect(*arguments, **options)
        opened.set()
        return connection

    monkeypatch.setattr(sqlite3, "connect", slowly)
    threads = set(threading.enumerate())
    gc.disable()  # a collection of cycles would close it
    try:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(engine.connect().start())
            await asyncio.to_thread(asked.wait, 30)
            if cancelled == "once it is open":
                may_open.set()
                opened.wait(30)  # with the loop standing still: nobody has heard of it
            waiting.cancel()
            may_open.set()
        for thread in set(threading.enumerate()) - threads:
            if "_connection_worker_thread" in thread.name:
                await asyncio.to_thread(thread.join, 30)
        assert opened.is_set()
        assert not [file.path for file in psutil.Process().open_files() if "state.db" in file.path]
    finally:
        gc.enable()
