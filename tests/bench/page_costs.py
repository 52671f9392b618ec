"""Prints as JSON the processor time of the daemon's reads of one run, and how it grows with the run's experiences.

python -P tests/bench/page_costs.py [--sizes 10000,100000,1000000]

A run is written to SQLite tables by the projector; each read is asked for several times on one connection, and the
median counts. `growth` is the exponent of the time between the smallest and the largest run: 0 for equal times.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from figures import tell
from page_postgres import BATCH, WideRun
from sqlalchemy.ext.asyncio import AsyncConnection
from synthetic.log.recorder import Recorder

from rftd.daemon.http.views.experiments import page_of
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.books import books_of
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.experience_pages import ORDERS, ExperienceFilter, list_experiences
from rftd.storage.queries.experiments import list_experiments
from rftd.streams.memory import MemoryLog

TIMES = 7
PAGES_DEEP = 20
FILTERS = {
    "state": ExperienceFilter(state="planned"),
    "step": ExperienceFilter(first_step=3, last_step=5),
    "reward": ExperienceFilter(min_reward=0.5),
    "staleness": ExperienceFilter(min_staleness_versions=0),
    "finish": ExperienceFilter(finish="stop"),
    "version": ExperienceFilter(version=4),
}
_Read = Callable[[AsyncConnection], Awaitable[object]]


async def cost_ms(connection: AsyncConnection, read: _Read) -> float:
    """The median of the processor time of a read, the first one left out."""
    spent = []
    for _ in range(TIMES + 1):
        began = time.process_time()
        await read(connection)
        spent.append((time.process_time() - began) * 1000)
    return round(statistics.median(spent[1:]), 2)


async def deep(connection: AsyncConnection, run: WideRun, order: str) -> str | None:
    """The cursor after many long pages."""
    cursor = None
    for _ in range(PAGES_DEEP):
        page = await list_experiences(connection, run.id, order=order, limit=1000, cursor=cursor)
        if page.next is None:
            return cursor
        cursor = page.next
    return cursor


async def measured(experiences: int, folder: Path) -> dict[str, float]:
    """The costs of every read of a run with so many experiences."""
    recorder = Recorder()
    run = WideRun(recorder, steps=max(1, experiences // BATCH), faults=False)
    run.write()
    log = MemoryLog()
    for first in range(0, len(recorder.drafts), 1024):
        await log.append(recorder.drafts[first : first + 1024])
    recorder.drafts.clear()
    engine = open_database(f"sqlite+aiosqlite:///{folder / f'{experiences}.db'}")
    projector = Projector(log, engine, clock=SystemClock())
    await projector.reset()
    await projector.catch_up()
    curves = RewardCurves()
    costs: dict[str, float] = {}
    async with engine.connect() as connection:
        costs["books_ms"] = await cost_ms(connection, lambda reader: books_of(reader, run.id))
        costs["page_ms"] = await cost_ms(connection, lambda reader: page_of(reader, run.id, curves))
        costs["list_ms"] = await cost_ms(connection, list_experiments)
        for order in ORDERS:
            for place, cursor in (("first", None), ("deep", await deep(connection, run, order))):
                page = partial(list_experiences, experiment=run.id, order=order, cursor=cursor)
                costs[f"{order}_{place}_ms"] = await cost_ms(connection, page)
        for name, where in FILTERS.items():
            costs[f"filter_{name}_ms"] = await cost_ms(
                connection, partial(list_experiences, experiment=run.id, where=where)
            )
    await projector.close()
    await engine.dispose()
    return costs


async def main(sizes: list[int]) -> dict[str, Any]:
    """The costs of each size, and the growth of each read."""
    with tempfile.TemporaryDirectory() as folder:
        costs = {size: await measured(size, Path(folder)) for size in sizes}
    smallest, largest = costs[sizes[0]], costs[sizes[-1]]
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    growth = {name.removesuffix("_ms"): round(math.log(largest[name] / smallest[name]) / span, 3) for name in smallest}
    return {"by_experiences": costs, "growth": growth}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="10000,100000,1000000")
    options = parser.parse_args()
    tell(asyncio.run(main([int(size) for size in options.sizes.split(",")])))
