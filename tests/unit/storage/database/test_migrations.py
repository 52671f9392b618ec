"""Revisions: up, down, equal to the models; other releases' and foreign databases are refused. On both databases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateSchema, CreateTable
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock, SystemClock
from rftd.ops.errors import ConflictError
from rftd.storage.database import migrations, schema
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.database.postgres import SCHEMA
from rftd.storage.database.tables import Row
from rftd.storage.projector.projections import PROJECTIONS, Projection
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest, rebuild
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio

NEXT = '''"""A later release."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "HEAD"


def upgrade() -> None:
    op.add_column("steps", sa.Column("mood", sa.String()))


def downgrade() -> None:
    op.drop_column("steps", "mood")
'''


@pytest.fixture
async def log(run: SyntheticRun, anyio_backend: str) -> MemoryLog:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    return log


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this the next release from now on."""
    folder = tmp_path / "later"
    shutil.copytree(migrations.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "r9999_mood.py").write_text(NEXT.replace("HEAD", migrations.HEAD))
    monkeypatch.setattr(schema, "FOLDER", folder)
    monkeypatch.setattr(schema, "HEAD", "9999")


async def fill(log: MemoryLog, engine: AsyncEngine, projections: tuple[Projection, ...] = PROJECTIONS) -> Projector:
    projector = Projector(log, engine, clock=ManualClock(), projections=projections)
    await projector.catch_up()
    await projector.close()
    return projector


def differences(connection: Connection) -> list[Any]:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    options = {"compare_type": True, "version_table": migrations.VERSION_TABLE}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), Row.metadata))


async def test_revisions_make_what_the_models_say(either: AsyncEngine) -> None:
    await fill(MemoryLog(), either)
    async with either.connect() as connection:
        assert await connection.run_sync(differences) == []
        there = MetaData()
        await connection.run_sync(there.reflect)
    names = {table.name for table in Row.metadata.sorted_tables}
    assert set(there.tables) == {*names, migrations.VERSION_TABLE}
    for table in Row.metadata.sorted_tables:
        assert [c.name for c in there.tables[table.name].columns] == [c.name for c in table.columns]


async def test_clustered_tables_are_made_so(engine: AsyncEngine) -> None:
    await fill(MemoryLog(), engine)
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        made = {name: "WITHOUT ROWID" in sql for name, sql in rows}
    for table in Row.metadata.sorted_tables:
        wanted = "WITHOUT ROWID" in str(CreateTable(table).compile(dialect=engine.dialect))
        assert made[table.name] == wanted, table.name


async def test_down_leaves_nothing_and_up_comes_back(either: AsyncEngine) -> None:
    from alembic import command

    def both(connection: Connection) -> tuple[list[str], list[Any]]:
        command.upgrade(schema.config(connection), "head")
        command.downgrade(schema.config(connection), "base")
        left = inspect(connection).get_table_names()
        command.upgrade(schema.config(connection), "head")
        return left, differences(connection)

    async with either.begin() as connection:
        if either.dialect.name == "postgresql":
            await connection.execute(CreateSchema(SCHEMA))
        left, different = await connection.run_sync(both)
    assert (left, different) == ([migrations.VERSION_TABLE], [])


def test_there_is_one_line_of_revisions_and_its_head_is_ours() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(schema.config())
    assert script.get_heads() == [migrations.HEAD]
    assert len(script.get_bases()) == 1


async def test_an_older_database_is_upgraded_in_place(
    log: MemoryLog, either_url: str, request: pytest.FixtureRequest
) -> None:
    older = open_database(either_url)
    await fill(log, older)
    before = await digest(older)
    await older.dispose()
    request.getfixturevalue("later")
    newer = open_database(either_url)
    projector = await fill(log, newer)
    assert projector.applied_records == 0, "nothing was filled again"
    assert await digest(newer) == before
    async with newer.connect() as connection:
        assert await connection.scalar(text("SELECT count(mood) FROM steps")) == 0
    await newer.dispose()


@pytest.fixture
async def of_another_release(log: MemoryLog, either: AsyncEngine) -> AsyncEngine:
    """A filled database whose revision this release does not know."""
    await fill(log, either)
    async with either.begin() as connection:
        await connection.execute(text(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0010'"))
        await connection.execute(text("ALTER TABLE steps DROP COLUMN metrics"))
    return either


async def contents(engine: AsyncEngine) -> dict[str, list[Any]]:
    async with engine.connect() as connection:
        there = MetaData()
        await connection.run_sync(there.reflect)
        return {table.name: list(await connection.execute(table.select())) for table in there.sorted_tables}


async def test_a_database_of_another_release_is_refused_and_left_as_it_is(
    log: MemoryLog, of_another_release: AsyncEngine
) -> None:
    before = await contents(of_another_release)
    with pytest.raises(ConflictError, match=r"another release of rftd \(schema 0010; this release knows") as refused:
        await fill(log, of_another_release)
    assert "use the release that made them" in str(refused.value)
    assert await contents(of_another_release) == before


async def test_tables_of_another_release_are_not_compared_with_rebuilt_ones(
    log: MemoryLog, of_another_release: AsyncEngine, tmp_path: Path
) -> None:
    fresh = tmp_path / "rebuilt.db"
    with pytest.raises(ConflictError, match=r"another release of rftd \(schema 0010"):
        await rebuild(log, sqlite_url(fresh), clock=ManualClock(), live=of_another_release)
    assert not fresh.exists()


async def test_a_projection_of_another_version_fills_the_tables_again(log: MemoryLog, either: AsyncEngine) -> None:
    await fill(log, either)
    before = await digest(either)
    newer = tuple(Projection(p.name, p.version + (p.name == "steps"), p.tables, p.handlers) for p in PROJECTIONS)
    projector = Projector(log, either, clock=ManualClock(), projections=newer)
    await projector.open()
    assert projector.positions == {}
    await projector.catch_up()
    await projector.close()
    assert await digest(either) == before
    assert (await fill(log, either, newer)).applied_records == 0


async def test_foreign_tables_under_our_names_are_not_touched(log: MemoryLog, either: AsyncEngine) -> None:
    async with either.begin() as connection:
        if either.dialect.name == "postgresql":
            await connection.execute(CreateSchema(SCHEMA))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS steps (theirs BIGINT)"))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS mine (theirs BIGINT)"))
    projector = Projector(log, either, clock=SystemClock())
    with pytest.raises(ConflictError, match="tables that rftd did not make: steps"):
        await projector.open()
    async with either.connect() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    assert sorted(names) == ["mine", "steps"]
