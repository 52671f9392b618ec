"""A plan that is not of the next step is in no table, whenever the projector begins again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.busy_run import fold
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SFT_STEPS, Member, SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import batches, books
from rftd.streams.events.batch import BatchAbandoned
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def run() -> SyntheticRun:
    """A run whose third step is executed, with one group that waits."""
    run = SyntheticRun(Recorder(), faults=False).warmed_up()
    run.explore()
    run.train()
    run.explore()
    return run


def plan_at(run: SyntheticRun, step: int, members: Sequence[Member] = ()) -> None:
    """A plan for any step, of the waiting experiences unless told otherwise, written in the planner's name."""
    run.ahead.clear()
    version = run.version
    run.version = step - 1
    run.plan(stage=1, again=members or run.waiting[:])
    run.version = version
    run.ahead.clear()
    run.batches.pop()


@pytest.mark.parametrize("lives", [1, 2], ids=["one life", "a life for each record"])
async def test_a_plan_that_leaves_steps_out_or_comes_back_is_in_no_table(
    run: SyntheticRun, either: AsyncEngine, lives: int
) -> None:
    next_step = run.version + 1
    for step in (1, run.version, next_step + 1, next_step + 40):
        plan_at(run, step)
    abandoned = run.plan(stage=1, again=run.waiting[:])
    run.recorder.write(BatchAbandoned(batch=abandoned, step=next_step, code="X", reason="no"), run.id, role="planner")
    run.ahead.clear()
    run.batches.pop()
    plan_at(run, next_step + 1)
    planned = run.waiting[:]
    run.plan(stage=1, take=len(planned))
    plan_at(run, next_step, planned)

    log = MemoryLog()
    projector = Projector(log, either, clock=ManualClock())
    for drafts in [run.recorder.drafts] if lives == 1 else [[draft] for draft in run.recorder.drafts]:
        await log.append(drafts)
        await projector.catch_up()
        if lives > 1:
            await projector.close()
    async with either.connect() as connection:
        rows = await batches.list_batches(connection, run.id)
        counts = await books.books_of(connection, run.id)
    await projector.close()
    assert [row.step for row in rows if row.state != "abandoned"] == list(range(1, SFT_STEPS + 3))
    assert [row.id for row in rows if row.state == "abandoned"] == [str(abandoned)]
    replay_buffer = fold(run.id, run.recorder.records).replay_buffer.counts()
    assert (counts.planned, counts.waiting, counts.balance) == (replay_buffer["planned"], 0, 0)
