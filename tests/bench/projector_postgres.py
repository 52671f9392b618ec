"""Prints as JSON: how late Postgres' tables are at 1,000 events/s, and how fast they are rebuilt beside SQLite's.

python -P tests/bench/projector_postgres.py [--postgres URL] [--events N] [--seconds S]

Without a URL it starts a Postgres of its own that syncs to disk. The database's tables of rftd are emptied. Events are
experiences of ~10 KB with their groups and batches. Lag: from an append's return to the commit; the projector hurries
where somebody waits for a record, and gathers records a while where nobody does.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from projector_apply import write
from synthetic.log.recorder import Recorder

from rftd.daemon.stack.postgres import PostgresServer
from rftd.ops.clock import SystemClock
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import digest
from rftd.streams.memory import MemoryLog

RATE_PER_S = 1000
APPEND_RECORDS = 10
REPEATS = 5
POLL_INTERVAL_S = 0.005
"""How often the positions are looked at where nobody waits; ten events that arrive together count once there."""


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of a running Postgres."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="rftd-bench-") as folder:
        Path(folder).chmod(0o711)
        postgres = PostgresServer(Path(folder) / "postgres", trust=True)
        postgres.start()
        try:
            yield postgres.url
        finally:
            postgres.remove()


async def live(recorder: Recorder, url: str, seconds: float, *, waited: bool) -> dict[str, Any]:
    """Lag of each event while they arrive ten at a time, and somebody waits for each, or nobody does."""
    log, engine = MemoryLog(), open_database(url)
    projector = Projector(log, engine, clock=SystemClock())
    await projector.reset()
    await projector.open()
    drafts = recorder.drafts[: int(RATE_PER_S * seconds)]
    lags: list[float] = []

    async def passed(position: Any, appended: float) -> None:
        if waited:
            await projector.wait_for(position.partition, position.offset, timeout_s=60)
        while projector.positions.get(position.partition, 0) <= position.offset:  # noqa: ASYNC110  to wait is to hurry it
            await asyncio.sleep(POLL_INTERVAL_S)
        lags.append(time.perf_counter() - appended)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(projector.run())
        start, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as waits:
            for first in range(0, len(drafts), APPEND_RECORDS):
                positions = await log.append(drafts[first : first + APPEND_RECORDS])
                appended = time.perf_counter()
                for position in positions if waited else positions[-1:]:
                    waits.create_task(passed(position, appended))
                await asyncio.sleep(max(0.0, start + (first + APPEND_RECORDS) / RATE_PER_S - time.perf_counter()))
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        following.cancel()
    await engine.dispose()
    p50, p99 = np.percentile(np.array(lags) * 1000, [50, 99])
    return {
        "events_per_s": round(len(drafts) / wall),
        "lag_ms_p50": round(float(p50), 1),
        "lag_ms_p99": round(float(p99), 1),
        "lag_ms_max": round(max(lags) * 1000, 1),
        "cores_with_feeding": round(cpu / wall, 2),
    }


async def fill(log: MemoryLog, url: str) -> tuple[float, str]:
    """Events per second from nothing, and the digest of the tables."""
    engine = open_database(url)
    projector = Projector(log, engine, clock=SystemClock())
    await projector.reset()
    await projector.open()
    start = time.perf_counter()
    await projector.catch_up()
    rate = projector.applied_records / (time.perf_counter() - start)
    found = await digest(engine)
    await projector.close()
    await engine.dispose()
    return rate, found.total


async def main(url: str, events: int, seconds: float) -> dict[str, Any]:
    """All figures; of the rebuilds the median of five, in turns."""
    recorder = Recorder()
    write(recorder, max(events, int(RATE_PER_S * seconds)))
    log = MemoryLog()
    for first in range(0, len(recorder.drafts), 1024):
        await log.append(recorder.drafts[first : first + 1024])
    rates: dict[str, list[float]] = {"postgres": [], "sqlite": []}
    totals = set()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            for name, place in (("postgres", url), ("sqlite", sqlite_url(Path(folder) / "state.db"))):
                rate, total = await fill(log, place)
                rates[name].append(rate)
                totals.add(total)
    medians = {name: float(np.median(found)) for name, found in rates.items()}
    return {
        "events": len(recorder.drafts),
        "live": await live(recorder, url, seconds, waited=True),
        "live_unwaited": await live(recorder, url, seconds, waited=False),
        "rebuild_events_per_s": {name: round(rate) for name, rate in medians.items()},
        "rebuild_events_per_s_all": {name: [round(rate) for rate in found] for name, found in rates.items()},
        "postgres_to_sqlite": round(medians["postgres"] / medians["sqlite"], 2),
        "digests_equal": len(totals) == 1,
    }


if __name__ == "__main__":
    options = read_options(__doc__, postgres=str, events=20_480, seconds=15.0)
    with server(options.postgres) as url:
        tell(asyncio.run(main(url, options.events, options.seconds)))
