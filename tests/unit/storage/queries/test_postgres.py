"""Postgres is only a URL: the same digests and answers, whatever its locale; our tables lie apart from others'."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock, SystemClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest, rebuild
from rftd.storage.queries import batches, drops, experiences, experiments, rollout_rows, steps, weights
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.experience_pages import ORDERS, ExperienceFilter, list_experiences
from rftd.storage.queries.experiments import ExperimentFilter
from rftd.storage.queries.names import resolve_experiment
from rftd.streams.events import worker
from rftd.streams.log import topics
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def answers(connection: AsyncConnection, run: SyntheticRun) -> list[object]:
    """One of each query."""
    where = ExperienceFilter(first_step=3, min_reward=0.0, max_staleness_versions=9, stage=1, state="planned")
    return [
        await resolve_experiment(connection, "small"),
        await experiments.list_experiments(connection, where=ExperimentFilter(states=("completed", "failed"))),
        await experiments.list_experiments(connection, where=ExperimentFilter(labels=("nobody", "has=this"))),
        await experiments.get_experiment(connection, run.id),
        await steps.list_steps(connection, run.id),
        await RewardCurves().of(connection, run.id),
        await steps.list_evals(connection, run.id, taskset="held_out"),
        await batches.list_batches(connection, run.id),
        [await batches.list_items(connection, UUID(row.id)) for row in await batches.list_batches(connection, run.id)],
        await weights.list_weights(connection, run.id),
        await weights.list_checkpoints(connection, run.id),
        await weights.list_workers(connection),
        await experiences.get_experience(connection, run.late),
        await drops.drops_of(connection, run.id),
        await rollout_rows.rollouts_of_row(connection, run.id, 1, stage=1, limit=9, offset=0),
        await _of_group(connection, run),
        [await list_experiences(connection, run.id, where=where, order=order) for order in ORDERS],
    ]


async def _of_group(connection: AsyncConnection, run: SyntheticRun) -> list[object]:
    """The rollouts of the group with a late experience, its failures, and a plan."""
    row = await experiences.get_experience(connection, run.late)
    group = await rollout_rows.find_group(connection, run.id, row.group[:13])
    planned = (await list_experiences(connection, run.id, where=ExperienceFilter(state="planned"), limit=1)).items
    return [
        await rollout_rows.rollouts_of_group(connection, group, first=0, limit=9),
        await rollout_rows.failed_of_group(connection, group, limit=9),
        await rollout_rows.plan_of(connection, UUID(planned[0].id)),
    ]


@pytest.mark.parametrize("max_records", [13, 1024])
async def test_tables_and_answers_equal_those_of_sqlite(
    run: SyntheticRun, engine: AsyncEngine, postgres: AsyncEngine, max_records: int
) -> None:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    found = []
    for database in (engine, postgres):
        projector = Projector(log, database, clock=SystemClock(), max_records=max_records)
        await projector.catch_up()
        await projector.close()
        async with database.connect() as connection:
            found.append((await digest(database), await answers(connection, run)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def awkward_texts() -> list[Draft]:
    """Roles of fences are keys: in the order of bytes they lie otherwise than in any language's."""
    recorder = Recorder()
    for name in ("b", "B", "a", "A", "é", "z", "Z", "_", "-a", "ß", "aa", "a b", "\U0001f600", "\uffff"):
        recorder.fence(name, None, Partition(topics.WORKERS, 0))
    return recorder.drafts


async def test_order_does_not_depend_on_the_servers_locale(engine: AsyncEngine, postgres_url: str) -> None:
    maker = open_database(postgres_url)
    name = postgres_url.rpartition("/")[2].partition("?")[0] + "_icu"
    async with maker.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        made = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        await connection.execute(text(made))
    other = open_database(postgres_url.replace(postgres_url.rpartition("/")[2].partition("?")[0], name))
    try:
        log = MemoryLog()
        await log.append(awkward_texts())
        for database in (engine, other):
            projector = Projector(log, database, clock=SystemClock())
            await projector.catch_up()
            await projector.close()
        assert await digest(other) == await digest(engine)
        async with other.connect() as connection:
            roles = (await connection.execute(text("SELECT role FROM fences ORDER BY role"))).scalars().all()
            sorted_here = await connection.scalar(text("SELECT 'B' < 'a'"))
        assert list(roles) == sorted(roles)
        assert sorted_here is False, "the database itself has another order"
    finally:
        await other.dispose()
        async with maker.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        await maker.dispose()


async def test_rebuild_empties_our_tables_and_no_others(run: SyntheticRun, postgres_url: str) -> None:
    log, engine = MemoryLog(), open_database(postgres_url)
    await log.append(run.recorder.drafts)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE public.workers (name text)"))
        await connection.execute(text("INSERT INTO public.workers VALUES ('theirs')"))
        await connection.execute(text("CREATE TABLE public.alembic_version (version_num text)"))
        await connection.execute(text("INSERT INTO public.alembic_version VALUES ('theirs')"))
    first = await rebuild(log, postgres_url, clock=SystemClock())
    again = await rebuild(log, postgres_url, clock=SystemClock(), live=engine)
    assert first.rebuilt == again.rebuilt
    assert again.different == ()
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT name FROM public.workers")) == "theirs"
        assert await connection.scalar(text("SELECT version_num FROM public.alembic_version")) == "theirs"
        with pytest.raises(ProgrammingError):
            await connection.execute(text("SELECT * FROM public.experiences"))
    await engine.dispose()


def too_large(draft: Draft) -> Draft:
    """The same with a number that is beyond 63 bits, where it has one of 40: what no writer of ours makes."""
    packed = [msgspec.msgpack.encode(number) for number in (1 << 39, 1 << 63)]
    return msgspec.structs.replace(draft, value=draft.value.replace(*packed))


async def test_values_that_no_database_takes_are_dead_letters_on_both(
    engine: AsyncEngine, postgres: AsyncEngine
) -> None:
    recorder = Recorder()
    ids = [recorder.ids.new() for _ in range(4)]
    for id, pid in zip(ids, (1, 1 << 39, 2, 3), strict=True):
        recorder.write(
            worker.WorkerStarted(worker=id, role="explorer", slot=0, host="h", pid=pid, process_start_s=0.0),
            None,
            key=id,
        )
        recorder.drafts[-1] = too_large(recorder.drafts[-1])
    recorder.fence("r" * 3000, None, Partition(topics.WORKERS, 0))
    log, counts = MemoryLog(), []
    await log.append(recorder.drafts)
    for database in (engine, postgres):
        projector = Projector(log, database, clock=ManualClock(), max_records=2)
        await projector.catch_up()
        await projector.close()
        counts.append((projector.applied_records, projector.dead_records))
    assert counts == [(3, 2), (3, 2)]
    assert await digest(postgres) == await digest(engine)


async def test_what_the_server_alone_refuses_is_a_dead_letter(run: SyntheticRun, postgres: AsyncEngine) -> None:
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    projector = Projector(log, postgres, clock=SystemClock())
    await projector.open()
    async with postgres.begin() as connection:
        await connection.execute(text("ALTER TABLE groups ADD CHECK (failed = 0)"))
    await asyncio.wait_for(projector.catch_up(), 60)
    await projector.close()
    assert projector.dead_records == 1
    async with postgres.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM groups")) == run.groups - 1
