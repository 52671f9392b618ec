"""Prints as JSON how long Postgres takes over an experiment's page right after a bulk of records, and over its buffer.

python -P tests/bench/page_postgres.py [--steps N]

It starts a Postgres of its own, without autovacuum, which would look at the tables within a minute. One projector
applies the whole run at once, without measuring the tables and with; each figure is of the first reader and the second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from projector_postgres import server
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import REPEAT, SyntheticRun

from rftd.daemon.http.views.experiments import page_of
from rftd.ops.clock import SystemClock
from rftd.storage.database import table_statistics
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.buffer import count_buffer
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.steps import list_steps
from rftd.streams.memory import MemoryLog

BATCH = 64
NEVER = 1 << 60


class WideRun(SyntheticRun):
    """A run that trains on 64 experiences in each step."""

    def train(self) -> None:
        """One step on all that wait."""
        for _ in range(BATCH // REPEAT - 2):
            self.explore()
        self.plan(stage=1, take=len(self.waiting))
        self.complete(stage=1, items=BATCH)
        self.publish(0)


async def ms_of(work: Awaitable[object]) -> float:
    """The time that it takes."""
    began = time.perf_counter()
    await work
    return round((time.perf_counter() - began) * 1000, 1)


async def read(engine: AsyncEngine, run: WideRun) -> dict[str, float]:
    """The times of one reader, who has seen nothing before."""
    async with engine.connect() as connection:
        return {
            "page_ms": await ms_of(page_of(connection, run.id, RewardCurves())),
            "buffer_ms": await ms_of(count_buffer(connection, run.id)),
            "steps_ms": await ms_of(list_steps(connection, run.id)),
        }


async def filled(log: MemoryLog, url: str, run: WideRun) -> dict[str, Any]:
    """The times of two readers after the tables were filled at once."""
    engine = open_database(url)
    projector = Projector(log, engine, clock=SystemClock())
    await projector.reset()
    took_ms = await ms_of(projector.catch_up())
    first, second = await read(engine, run), await read(engine, run)
    await projector.close()
    await engine.dispose()
    return {"filled_ms": took_ms, "first": first, "second": second}


async def main(url: str, steps: int) -> dict[str, Any]:
    """All figures, in turn on one server."""
    recorder = Recorder()
    run = WideRun(recorder, steps=steps, faults=False)
    run.write()
    log = MemoryLog()
    for first in range(0, len(recorder.drafts), 1024):
        await log.append(recorder.drafts[first : first + 1024])
    engine = open_database(url)
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("ALTER SYSTEM SET autovacuum = off"))
        await connection.execute(text("SELECT pg_reload_conf()"))
    await engine.dispose()
    usual = table_statistics.FIRST_RECORDS
    table_statistics.FIRST_RECORDS = NEVER  # type: ignore[misc]
    without = await filled(log, url, run)
    table_statistics.FIRST_RECORDS = usual  # type: ignore[misc]
    measured = await filled(log, url, run)
    return {
        "records": len(recorder.drafts),
        "steps": steps,
        "experiences": steps * BATCH,
        "unmeasured": without,
        "measured": measured,
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    options = read_options(__doc__, steps=300)
    with server(None) as own:
        tell(asyncio.run(main(own, options.steps)))
