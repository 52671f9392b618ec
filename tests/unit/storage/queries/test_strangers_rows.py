"""Records that no holder of a lease wrote count nowhere in the tables, in whatever order the partitions are read."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.beset_run import BesetRun
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.ids import derive
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.batches import list_items
from rftd.storage.queries.books import books_of
from rftd.storage.queries.buffer import count_buffer
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.evaluations import score_places
from rftd.storage.queries.experience_pages import list_experiences
from rftd.storage.queries.experiments import get_summary
from rftd.storage.queries.lengths import lengths_of
from rftd.storage.queries.standing import list_figures
from rftd.storage.queries.steps import list_steps
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def figures(connection: AsyncConnection, run: SyntheticRun) -> dict[str, object]:
    """What the tables say of a run, without places in the log and times."""
    rows = (await list_experiences(connection, run.id, order="oldest", limit=1000)).items
    [standing] = await list_figures(connection, since_ns=0)
    items = [await list_items(connection, batch) for batch in run.batches]
    return {
        "experiences": sorted((row.id, row.state, row.reward, row.response_tokens, row.uses) for row in rows),
        "books": await books_of(connection, run.id),
        "buffer": await count_buffer(connection, run.id),
        "curve": [point.reward_mean for point in await RewardCurves().of(connection, run.id)],
        "lengths": await lengths_of(connection, run.id),
        "recent": (await get_summary(connection, run.id)).reward_mean,
        "rewards": standing.rewards,
        "steps": [row.reward_mean for row in await list_steps(connection, run.id)],
        "items": [[(item.experience, item.reward, item.rollout) for item in batch] for batch in items],
    }


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_the_tables_say_of_a_beset_run_what_they_say_without_strangers(
    either: AsyncEngine, engine: AsyncEngine, seed: int | None
) -> None:
    said: list[dict[str, object]] = []
    for run, tables in ((SyntheticRun(Recorder()).write(), engine), (BesetRun(Recorder()).write(), either)):
        log = MemoryLog()
        projector = Projector(log, tables, clock=ManualClock())
        for draft in run.recorder.drafts if seed is None else interleaved(run.recorder.drafts, seed):
            await log.append([draft])
        await projector.catch_up()
        await projector.close()
        async with tables.connect() as connection:
            said.append(await figures(connection, run))
            evaluation = derive(run.id, "eval", run.version)
            assert len(await score_places(connection, str(evaluation))) == 1
    assert said[0] == said[1]
