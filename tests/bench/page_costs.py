"""Prints as JSON the processor time of the reads of one run and of the list of runs, and their growth with the run.

python -P tests/bench/page_costs.py [--sizes 10000,1000000] [--queued 1000] [--ended 100] [--steps 10000]

A short run is written to SQLite tables by the projector, and copied there until it is large. Each read is that of the
API, with its JSON, asked for several times; the median counts. Pages of experiences are of each order and filter, first
ones and deep ones: of each the slowest is shown. `growth` is the exponent of the time between the smallest and the
largest run: 0 for equal times.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, read_options, tell
from page_tables import PageTables
from synthetic.daemon.log_operations import LogOperations

from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views import drops, experiences, experiments
from rftd.daemon.http.views.wire import encode
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_scrape import Scrape
from rftd.daemon.run.why.wait import Wait
from rftd.ops.clock import SystemClock
from rftd.ops.health import Health
from rftd.ops.ids import SystemIds
from rftd.ops.metrics import Metrics
from rftd.storage.queries.experience_pages import ORDERS

TIMES: Final = 7
PAGES_DEEP: Final = 10
FILTERS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "planned": {"state": "planned"},
    "retired": {"state": "retired"},
    "steps": {"first_step": 5, "last_step": 7},
    "many_steps": {"first_step": 5, "last_step": 5000},
    "reward": {"min_reward": 0.5},
    "staleness": {"min_staleness": 0},
    "finish": {"finish": "stop"},
    "no_such_finish": {"finish": "never"},
    "version": {"version": 4},
    "part": {"part": "accuracy", "min_part": 0.5},
    "row": {"row": 9},
}
_Read = Callable[[], Awaitable[Any]]


class QuietOperations(LogOperations):
    """Operations of a daemon whose run waits for nothing: a real one answers from memory, this one from the log."""

    async def waits(self, experiment_id: UUID) -> list[Wait]:
        return []


async def cost_ms(read: _Read) -> float:
    """The median of the processor time of a read, the first two left out: they fill caches."""
    spent_ms = []
    for _ in range(TIMES + 2):
        began_s = time.process_time()
        await read()
        spent_ms.append((time.process_time() - began_s) * 1000)
    return median_of(spent_ms[2:], 2)


class Reads:
    """The reads of the API over some tables."""

    def __init__(self, tables: PageTables) -> None:
        clock = SystemClock()
        feed = MetricsFeed(Metrics(version="bench"))
        scrape = Scrape(feed, log=tables.log, engine=tables.engine, applied=tables.projector, clock=clock)
        self._services = Services(
            operations=QuietOperations(tables.log),
            engine=tables.engine,
            log=tables.log,
            applied=tables.projector,
            health=Health(),
            scrape=scrape,
            clock=clock,
            ids=SystemIds(clock),
            version="bench",
        )

    async def page(self) -> bytes:
        """The page of the large run."""
        page = await experiments.one.work(self._services, name="large")
        return self._services.pages.body_of(UUID(page.experiment.summary.id), page)

    async def listed(self, **query: Any) -> bytes:
        """A list of runs."""
        return encode(await experiments.listed.work(self._services, **query))

    async def drops(self) -> bytes:
        """The drops of the large run."""
        return encode(await drops.drops.work(self._services, name="large"))

    async def experiences(self, **query: Any) -> experiences.ExperienceList:
        """A page of experiences, also encoded."""
        answer: experiences.ExperienceList = await experiences.experiences.work(self._services, name="large", **query)
        encode(answer)
        return answer

    async def deep(self, **query: Any) -> str | None:
        """The cursor after many long pages."""
        cursor = None
        for _ in range(PAGES_DEEP):
            following = (await self.experiences(limit=1000, cursor=cursor, **query)).next
            if following is None:
                return cursor
            cursor = following
        return cursor


async def measured_run(size: int, folder: Path) -> dict[str, float]:
    """The costs of every read of a run with so many experiences."""
    tables = PageTables(folder / f"{size}.db")
    await tables.write()
    tables.lengthen(size)
    reads = Reads(tables)
    costs = {"page_running_ms": await cost_ms(reads.page), "list_of_one_ms": await cost_ms(reads.listed)}
    by_order = dict.fromkeys(ORDERS, 0.0)
    by_filter = dict.fromkeys(FILTERS, 0.0)
    for name, where in FILTERS.items():
        for order in ORDERS:
            for cursor in {None, await reads.deep(order=order, **where)}:
                query = {"order": order, "limit": 50, "cursor": cursor, **where}
                ms = await cost_ms(lambda query=query: reads.experiences(**query))  # type: ignore[misc]
                by_order[order] = max(by_order[order], ms)
                by_filter[name] = max(by_filter[name], ms)
    costs |= {f"order_{name}_ms": ms for name, ms in by_order.items()}
    costs |= {f"filter_{name}_ms": ms for name, ms in by_filter.items()}
    costs["drops_ms"] = await cost_ms(reads.drops)
    tables.run.finish()
    await tables.append()
    costs["page_ended_ms"] = await cost_ms(reads.page)
    await tables.engine.dispose()
    return costs


async def measured_list(queued: int, ended: int, steps: int, folder: Path) -> dict[str, float]:
    """The costs of the list of many runs, in each order."""
    tables = PageTables(folder / "list.db")
    await tables.write()
    tables.add_queued(queued)
    tables.add_ended(ended, steps)
    reads = Reads(tables)
    costs = {}
    for order in ("newest", "oldest", "name", "state", "reward", "-reward"):
        costs[f"{order}_ms"] = await cost_ms(lambda order=order: reads.listed(order=order))  # type: ignore[misc]
    costs["words_ms"] = await cost_ms(lambda: reads.listed(words="ended 7"))
    costs["lost_ms"] = await cost_ms(lambda: reads.listed(signal="present", order="oldest"))
    costs["page_ms"] = await cost_ms(reads.page)
    await tables.engine.dispose()
    return costs


async def main(sizes: list[int], queued: int, ended: int, steps: int) -> dict[str, Any]:
    """The costs of each size, the growth of each read, and the costs of the list."""
    with tempfile.TemporaryDirectory() as folder:
        costs = {size: await measured_run(size, Path(folder)) for size in sizes}
        listed = await measured_list(queued, ended, steps, Path(folder))
    smallest, largest = costs[sizes[0]], costs[sizes[-1]]
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    growth = {name.removesuffix("_ms"): round(math.log(largest[name] / smallest[name]) / span, 3) for name in smallest}
    return {"by_experiences": costs, "growth": growth, "list": listed}


if __name__ == "__main__":
    options = read_options(__doc__, sizes="10000,1000000", queued=1000, ended=100, steps=10_000)
    chosen = [int(size) for size in options.sizes.split(",")]
    tell(asyncio.run(main(chosen, options.queued, options.ended, options.steps)))
