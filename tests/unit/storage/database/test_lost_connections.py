"""A Postgres that drops connections, dies, or belongs to somebody else: waited out, the tables are right afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.clock import ManualClock, SystemClock
from rftd.ops.errors import ConflictError
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def test_dropped_connections_are_waited_out(
    run: SyntheticRun, engine: AsyncEngine, postgres: AsyncEngine
) -> None:
    log = MemoryLog()
    projector = Projector(log, postgres, clock=SystemClock(), max_records=3)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for first in range(0, len(run.recorder.drafts), 30):
            positions = await log.append(run.recorder.drafts[first : first + 30])
            async with postgres.connect() as connection:
                others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
                await connection.execute(text(f"SELECT pg_terminate_backend(pid) {others}"))
            for position in positions:
                await projector.wait_for(position.partition, position.offset, timeout_s=240)
        following.cancel()
    await Projector(log, engine, clock=SystemClock()).catch_up()
    assert await digest(postgres) == await digest(engine)


async def test_a_killed_server_is_waited_out(run: SyntheticRun, engine: AsyncEngine, own_servers: Path) -> None:
    """SIGKILL may take the newest commits: rows and positions together."""
    server = PostgresServer(own_servers / "postgres", trust=True)
    await asyncio.to_thread(server.start)
    postgres = open_database(server.url_of("postgres"))
    log = MemoryLog()
    projector = Projector(log, postgres, clock=SystemClock(), max_records=5)
    *drafts, last = run.recorder.drafts
    pieces = [drafts[first : first + 40] for first in range(0, len(drafts), 40)]
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for piece in pieces:
            positions = await log.append(piece)
            await asyncio.to_thread(server.kill)
            waits = [group.create_task(projector.wait_for(p.partition, p.offset, timeout_s=240)) for p in positions]
            await asyncio.to_thread(server.start)
            for wait in waits:
                await wait
        # A commit acknowledged right before the kill may be lost: the projector reads its positions back with the next
        # commit, and then applies the partitions again in any order.
        [position] = await log.append([last])
        await projector.wait_for(position.partition, position.offset, timeout_s=240)
        for partition, mark in (await log.heads()).items():
            await projector.wait_for(partition, mark.next_offset - 1, timeout_s=240)
        following.cancel()
    await Projector(log, engine, clock=SystemClock()).catch_up()
    assert await digest(postgres) == await digest(engine)
    await postgres.dispose()
    await asyncio.to_thread(server.kill)


async def test_a_server_killed_while_nothing_happens_is_noticed(
    run: SyntheticRun, engine: AsyncEngine, own_servers: Path
) -> None:
    """Otherwise the commits lost by the kill would be missing until the next record."""
    server = PostgresServer(own_servers / "postgres", trust=True)
    await asyncio.to_thread(server.start)
    postgres = open_database(server.url_of("postgres"))
    log = MemoryLog()
    projector = Projector(log, postgres, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for position in await log.append(run.recorder.drafts):
            await projector.wait_for(position.partition, position.offset, timeout_s=240)
        await asyncio.to_thread(server.kill)
        await until(lambda: projector.last_error is not None)
        await asyncio.to_thread(server.start)
        await until(lambda: projector.last_error is None)
        following.cancel()
    await Projector(log, engine, clock=SystemClock()).catch_up()
    assert await digest(postgres) == await digest(engine)
    await postgres.dispose()
    await asyncio.to_thread(server.kill)


async def test_a_second_projector_is_refused_until_the_first_lets_go(run: SyntheticRun, postgres_url: str) -> None:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    engines = [open_database(postgres_url) for _ in range(2)]
    first, second = (Projector(log, engine, clock=ManualClock()) for engine in engines)
    await first.open()
    with pytest.raises(ConflictError, match=r"another daemon keeps the tables.*process \d+ of the server") as refused:
        await second.open()
    assert "stop that daemon" in str(refused.value)
    await first.catch_up()
    await first.close()
    await second.catch_up()
    assert second.applied_records == 0
    await second.close()
    for engine in engines:
        await engine.dispose()


async def test_a_second_projector_waits_and_takes_over(run: SyntheticRun, postgres_url: str) -> None:
    """No crash loop: `run` says why it waits."""
    log = MemoryLog()
    engines = [open_database(postgres_url) for _ in range(2)]
    first = Projector(log, engines[0], clock=SystemClock())
    second = Projector(log, engines[1], clock=ManualClock())
    await first.open()
    async with asyncio.TaskGroup() as group:
        following = group.create_task(second.run())
        await until(lambda: second.last_error)
        assert "another daemon keeps the tables" in str(second.last_error)
        await first.close()
        positions = await log.append(run.recorder.drafts)
        for position in positions:
            await second.wait_for(position.partition, position.offset, timeout_s=240)
        following.cancel()
    for engine in engines:
        await engine.dispose()


async def test_waits_on_locks_are_bounded(
    run: SyntheticRun, postgres: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rftd.storage.database import postgres as settings

    monkeypatch.setitem(settings._SETTINGS, "lock_timeout", "100")
    log = MemoryLog()
    await log.append(run.recorder.drafts[:1])
    projector = Projector(log, postgres, clock=SystemClock())
    await projector.catch_up()
    await log.append(run.recorder.drafts[1:])
    async with asyncio.TaskGroup() as group:
        async with postgres.begin() as connection:
            await connection.execute(text("LOCK TABLE positions IN ACCESS EXCLUSIVE MODE"))
            following = group.create_task(projector.run())
            await until(lambda: projector.last_error)
            assert "lock timeout" in str(projector.last_error)
        for partition, mark in (await log.heads()).items():
            await projector.wait_for(partition, mark.next_offset - 1, timeout_s=240)
        following.cancel()
