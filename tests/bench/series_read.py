"""Processor time of a series: four runs of 10,000 steps with fifty figures each, through the API, first and again.

The answer's size is that of its JSON by gzip. A run of a tenth of the steps shows the growth.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, tell
from synthetic.daemon.log_operations import LogOperations
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api.app import make_app
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.figures.step_figures import REWARDS
from rftd.streams.memory import MemoryLog

RUNS, STEPS, REPEATS, AT_ONCE = 4, 10_000, 15, 400
BASE: Final = "http://127.0.0.1:7070"


class Figures(msgspec.Struct):
    """Processor time in milliseconds, and the size of the answer for `reward`."""

    steps: int
    first_ms: float
    """With nothing in memory."""
    again_ms: float
    short_ms: float
    """Of four runs with a tenth of the steps, with their figures in memory."""
    ten_figures_first_ms: float
    ten_figures_again_ms: float
    json_kb: float
    gzip_kb: float


def metrics(step: int, chance: random.Random) -> dict[str, float]:
    """Fifty figures of a step, about 1.2 KB of JSON."""
    reward = 1 - math.exp(-step / 3000) + chance.gauss(0, 0.05)
    rewards = {name: reward + shift for name, shift in (("mean", 0), ("min", -1), ("max", 1), ("p50", 0.1))}
    rewards |= {"p10": reward - 0.5, "p90": reward + 0.5}
    figures = {f"{REWARDS}/{name}": figure for name, figure in rewards.items()}
    return figures | {f"actor/figure_{number}": chance.random() for number in range(44)}


async def filled(folder: Path, steps: int) -> tuple[httpx.AsyncClient, Any]:
    """A client of a daemon with four runs in its tables."""
    log, engine, recorder = MemoryLog(), open_database(sqlite_url(folder / f"{steps}.db")), Recorder()
    projector, chance = Projector(log, engine, clock=SystemClock()), random.Random(1)
    written = 0
    for number in range(RUNS):
        run = SyntheticRun(recorder, name=f"run-{number}", seed=number)
        run.begin()
        run.warm_up()
        for step in range(2, steps):
            run.figures = metrics(step, chance)
            run.plan(stage=1)
            run.complete(stage=1, items=64)
            run.publish(0)
            if step % AT_ONCE == 0:
                await log.append(recorder.drafts[written:])
                written = len(recorder.drafts)
                await projector.catch_up()
    await log.append(recorder.drafts[written:])
    await projector.catch_up()
    await projector.close()
    app = make_app(operations=LogOperations(log), log=log, engine=engine, projector=projector)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE), engine


async def cost_ms(client: httpx.AsyncClient, names: str) -> tuple[float, bytes]:
    """Processor time of one request, and its answer."""
    began_s = time.process_time()
    answer = await client.get(
        "/v1/series",
        params={"runs": ",".join(f"run-{number}" for number in range(RUNS)), "metrics": names, "points": 300},
        headers={"Accept-Encoding": "identity"},
    )
    spent_ms = 1e3 * (time.process_time() - began_s)
    assert answer.status_code == 200, answer.text
    return spent_ms, answer.content


async def measured() -> Figures:
    """All figures."""
    ten = ",".join(f"actor/figure_{number}" for number in range(10))
    with tempfile.TemporaryDirectory() as folder:
        client, engine = await filled(Path(folder), STEPS)
        first_ms, content = await cost_ms(client, "reward")
        again = [(await cost_ms(client, "reward"))[0] for _ in range(REPEATS)]
        ten_first_ms, _ = await cost_ms(client, ten)
        ten_again = [(await cost_ms(client, ten))[0] for _ in range(REPEATS)]
        await client.aclose()
        await engine.dispose()
        client, engine = await filled(Path(folder), STEPS // 10)
        await cost_ms(client, "reward")
        short = [(await cost_ms(client, "reward"))[0] for _ in range(REPEATS)]
        await client.aclose()
        await engine.dispose()
    return Figures(
        steps=STEPS,
        first_ms=round(first_ms, 1),
        again_ms=median_of(again, 1),
        short_ms=median_of(short, 1),
        ten_figures_first_ms=round(ten_first_ms, 1),
        ten_figures_again_ms=median_of(ten_again, 1),
        json_kb=round(len(content) / 1e3, 1),
        gzip_kb=round(len(gzip.compress(content, 6)) / 1e3, 1),
    )


if __name__ == "__main__":
    tell(asyncio.run(measured()))
