"""Postgres is only a URL: the same digests, the same answers, and a server that drops connections is waited out."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic_run import SyntheticRun

from rftd.ops.clock import SystemClock
from rftd.storage.database import open_database, reset
from rftd.storage.digest import digest
from rftd.storage.names import resolve_experiment
from rftd.storage.projector import Projector
from rftd.storage.queries import batches, experiences, experiments, steps, weights
from rftd.storage.queries.experiences import ExperienceFilter
from rftd.streams.backends.memory import MemoryLog

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not (shutil.which("initdb") and shutil.which("pg_ctl")), reason="no Postgres on the PATH"),
]

NOBODY = 65534


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """A server on a Unix socket in its own folder; as root it runs as nobody, for Postgres refuses root."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    data = folder / "data"
    user = NOBODY if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, user, user)

    def call(*command: str) -> None:
        subprocess.run(
            command,
            check=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdout=subprocess.DEVNULL,
            timeout=60,
        )

    call("initdb", "-D", str(data), "-A", "trust", "-U", "app", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield folder
    call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def postgres(server: Path, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(f"postgresql://app@/postgres?host={server}")
    yield engine
    await reset(engine)
    await engine.dispose()


async def answers(connection: AsyncConnection, run: SyntheticRun) -> list[object]:
    """One of each query."""
    where = ExperienceFilter(first_step=3, min_reward=0.0, max_staleness_versions=9, stage=1, state="planned")
    return [
        await resolve_experiment(connection, "small"),
        await experiments.list_experiments(connection, states=("completed", "failed")),
        await experiments.get_experiment(connection, run.id),
        await steps.list_steps(connection, run.id),
        await steps.reward_curve(connection, run.id),
        await steps.list_evals(connection, run.id, taskset="held_out"),
        await batches.list_batches(connection, run.id),
        await batches.lineage_of(connection, run.id, 4),
        await weights.list_weights(connection, run.id),
        await weights.list_checkpoints(connection, run.id),
        await weights.list_workers(connection),
        await experiences.get_experience(connection, run.late),
        [await experiences.list_experiences(connection, run.id, where=where, order=o) for o in experiences.ORDERS],
    ]


async def test_tables_and_answers_equal_those_of_sqlite(
    run: SyntheticRun, engine: AsyncEngine, postgres: AsyncEngine
) -> None:
    log = MemoryLog()
    await log.append(run.tape.drafts)
    found = []
    for database in (engine, postgres):
        await Projector(log, database, clock=SystemClock(), max_records=13).catch_up()
        async with database.connect() as connection:
            found.append((await digest(database), await answers(connection, run)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


async def test_dropped_connections_are_waited_out(
    run: SyntheticRun, engine: AsyncEngine, postgres: AsyncEngine
) -> None:
    log = MemoryLog()
    projector = Projector(log, postgres, clock=SystemClock(), max_records=3)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        for first in range(0, len(run.tape.drafts), 30):
            positions = await log.append(run.tape.drafts[first : first + 30])
            async with postgres.connect() as connection:
                await connection.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                )
            for position in positions:
                await projector.wait_for(position.partition, position.offset, timeout_s=20)
        following.cancel()
    await Projector(log, engine, clock=SystemClock()).catch_up()
    assert await digest(postgres) == await digest(engine)
