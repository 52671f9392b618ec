"""Digests and rebuilds: the tables are a pure function of the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConflictError, LogLossError, UsageError
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.database.tables import Row
from rftd.storage.projector.projections import PROJECTIONS
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import rebuild
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture
async def log(run: SyntheticRun, anyio_backend: str) -> MemoryLog:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    return log


async def test_rebuilt_tables_equal_the_live_ones_at_their_positions(
    log: MemoryLog, run: SyntheticRun, engine: AsyncEngine, tmp_path: Path
) -> None:
    part = MemoryLog()
    await part.append(run.recorder.drafts[:70])
    live = Projector(part, engine, clock=ManualClock())
    await live.catch_up()
    report = await rebuild(log, sqlite_url(tmp_path / "again.db"), clock=ManualClock(), live=engine)
    assert report.live is not None
    assert report.different == ()
    assert report.rebuilt == report.live, "the log went on, the comparison did not"
    assert report.rebuilt.total == report.live.total
    assert sum(mark.next_offset for mark in report.rebuilt.positions.values()) == 70


async def test_a_changed_row_is_found_by_its_table(log: MemoryLog, engine: AsyncEngine, tmp_path: Path) -> None:
    await Projector(log, engine, clock=ManualClock()).catch_up()
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE batches SET staleness_mean = 0.5 WHERE step = 4"))
    report = await rebuild(log, sqlite_url(tmp_path / "again.db"), clock=ManualClock(), live=engine)
    assert report.different == ("batches",)


async def test_rebuild_empties_what_was_there(log: MemoryLog, tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "state.db")
    first = await rebuild(log, url, clock=ManualClock())
    again = await rebuild(log, url, clock=ManualClock())
    assert first.rebuilt == again.rebuilt
    assert again.live is None


async def test_rebuild_refuses_a_log_that_lost_what_the_tables_hold(
    log: MemoryLog, run: SyntheticRun, engine: AsyncEngine, tmp_path: Path
) -> None:
    await Projector(log, engine, clock=ManualClock()).catch_up()
    shorter = MemoryLog()
    await shorter.append(run.recorder.drafts[:-1])
    with pytest.raises(LogLossError):
        await rebuild(shorter, sqlite_url(tmp_path / "again.db"), clock=ManualClock(), live=engine)


def test_every_table_and_statement_is_portable_to_postgres() -> None:
    dialect = asyncpg.dialect()
    definitions = [str(CreateTable(table).compile(dialect=dialect)) for table in Row.metadata.sorted_tables]
    assert not [text for text in definitions if "INTEGER" in text], "counts and times need 64 bits"
    for projection in PROJECTIONS:
        for kind in projection.tables:
            assert kind.__table__ in Row.metadata.sorted_tables  # type: ignore[attr-defined]


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(UsageError, match="no state database of kind 'mysql'"):
        open_database("mysql://localhost/x")
    with pytest.raises(UsageError, match="cannot be read"):
        open_database("not a url")
    assert open_database("postgresql://localhost/x").url.drivername == "postgresql+asyncpg"


async def test_a_damaged_file_is_named_with_what_to_do(log: MemoryLog, engine: AsyncEngine, tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database " * 1000)
    with pytest.raises(ConflictError, match="damaged") as refused:
        await Projector(log, engine, clock=ManualClock()).open()
    assert "state.db" in str(refused.value)
    assert "delete" in str(refused.value)
