"""A step of a batch that was abandoned before it never was: for tables, lineage and forks as for the fold."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.busy_run import fold
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConflictError, NotFoundError
from rftd.storage.lineage.walk import lineage
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import experiments, steps, weights
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.events import batch
from rftd.streams.log.shared_history import shared_history
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


async def test_a_step_of_a_batch_that_was_abandoned_before_it_never_was(either: AsyncEngine) -> None:
    """The trainer was executing it, and the planner gave up what it holds."""
    recorder = Recorder()
    run = SyntheticRun(recorder, steps=1, faults=False)
    run.begin()
    run.warm_up()
    run.explore()
    abandoned = run.plan(stage=1, take=4)
    recorder.write(batch.BatchAbandoned(batch=abandoned, step=3, code="X", reason="gone"), run.id, role="planner")
    run.complete(stage=1, items=4)
    run.publish(0)
    run.commit(stage=1, final=False)
    spine = fold(run.id, recorder.records).spine
    assert (spine.furthest, spine.version) == (2, 2)
    assert not spine.made(3, 0, "c3.0")

    log = MemoryLog()
    await log.append(recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    async with either.connect() as connection:
        summary = await experiments.get_summary(connection, run.id)
        assert (summary.step, summary.staleness_p95) == (2, None)
        for every in (False, True):
            assert [row.step for row in await steps.list_steps(connection, run.id, every_generation=every)] == [1, 2]
        assert await RewardCurves().of(connection, run.id) == []
        assert {row.version: row.counts for row in await weights.list_weights(connection, run.id)}[3] is False
        assert {row.step: row.counts for row in await weights.list_checkpoints(connection, run.id)}[3] is False
        with pytest.raises(NotFoundError, match="there is no small/step/3"):
            await lineage(connection, "small/step/3")
        found = await lineage(connection, str(abandoned), direction="down")
        assert found.down == []
        assert "abandoned: gone" in found.nodes[0].text
        children = (await lineage(connection, "small", direction="down", depth=1)).down
        assert "small/step/2.0" in {link.effect for link in children}
        assert "small/step/3.0" not in {link.effect for link in children}
    await projector.close()
    with pytest.raises(ConflictError, match="step 3 was not executed"):
        await shared_history(log, run.id, 3)
