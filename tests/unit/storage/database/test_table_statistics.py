"""Postgres' statistics follow the tables: after a bulk of records, at each doubling, and harmlessly if they cannot."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.ops.clock import SystemClock
from rftd.storage.database.table_statistics import FIRST_RECORDS
from rftd.storage.projector.projector import Projector
from rftd.streams.log.envelope import Draft
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def drafts() -> list[Draft]:
    """A run of more than twice, and less than four times, as many records as tables that are measured at all."""
    found = SyntheticRun(Recorder(), steps=FIRST_RECORDS // 7, faults=False).write().recorder.drafts
    assert 2 * FIRST_RECORDS + 100 < len(found) < 4 * FIRST_RECORDS
    return found


def measures(engine: AsyncEngine) -> list[str]:
    """The ANALYZE statements of an engine, as they come."""
    found: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def sent(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("ANALYZE"):
            found.append(statement)

    return found


async def measured_tables(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT DISTINCT tablename FROM pg_stats WHERE schemaname = 'rftd'"))
        return set(found.scalars())


async def test_whatever_was_written_at_once_is_measured(drafts: list[Draft], postgres: AsyncEngine) -> None:
    log = MemoryLog()
    await log.append(drafts)
    projector = Projector(log, postgres, clock=SystemClock())
    await projector.catch_up()
    await projector.close()
    assert await measured_tables(postgres) >= {"batch_items", "experiences", "batches", "steps", "groups"}


async def test_a_projector_that_follows_measures_at_each_doubling(drafts: list[Draft], postgres: AsyncEngine) -> None:
    log, found = MemoryLog(), measures(postgres)
    projector = Projector(log, postgres, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        done = 0
        for length, times in ((FIRST_RECORDS - 1, 0), (FIRST_RECORDS, 1), (2 * FIRST_RECORDS - 1, 1), (len(drafts), 2)):
            await log.append(drafts[done:length])
            done = length
            await projector.catch_up()
            await until(lambda times=times: len(found) >= times)  # type: ignore[misc]
        following.cancel()
    assert len(found) == 2
    assert "batch_items" in await measured_tables(postgres)


async def test_sqlite_is_never_measured(drafts: list[Draft], engine: AsyncEngine) -> None:
    log, found = MemoryLog(), measures(engine)
    await log.append(drafts)
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    await projector.close()
    assert found == []


async def test_a_projector_goes_on_where_they_cannot_be_measured(
    drafts: list[Draft], postgres: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    log, found = MemoryLog(), measures(postgres)
    projector = Projector(log, postgres, clock=SystemClock())
    await projector.open()
    async with postgres.begin() as connection:
        await connection.execute(text("ALTER TABLE overdue_windows RENAME TO away"))
    await log.append(drafts[: FIRST_RECORDS + 10])
    await projector.catch_up()
    assert len(found) == 1
    assert "queries may be slow" in caplog.text
    async with postgres.begin() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO overdue_windows"))
    await log.append(drafts[FIRST_RECORDS + 10 : 2 * FIRST_RECORDS + 10])
    await projector.catch_up()
    await projector.close()
    assert len(found) == 2
    assert "batch_items" in await measured_tables(postgres)


async def test_one_that_waits_keeps_neither_the_tables_nor_the_end_waiting(
    drafts: list[Draft], postgres: AsyncEngine
) -> None:
    log, found = MemoryLog(), measures(postgres)
    projector = Projector(log, postgres, clock=SystemClock())
    await projector.open()
    async with postgres.connect() as connection, asyncio.timeout(60):
        # What was measured cannot be written now; queries are planned all the same.
        await connection.execute(text("LOCK TABLE pg_catalog.pg_statistic IN SHARE MODE"))
        async with asyncio.TaskGroup() as group:
            following = group.create_task(projector.run())
            await log.append(drafts[:FIRST_RECORDS])
            await until(lambda: found)
            await log.append(drafts[FIRST_RECORDS:])
            await projector.catch_up()
            following.cancel()
    assert sum(projector.positions.values()) == len(drafts)
    assert projector.last_error is None
