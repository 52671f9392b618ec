"""A remembered curve is that of the tables, however the log came into them, and whatever history is taken up again."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import curve
from rftd.storage.queries.curve import RewardCurves
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seed", range(2))
async def test_it_grows_as_the_tables_do(engine: AsyncEngine, seed: int) -> None:
    run = SyntheticRun(Recorder(seed), steps=5).write()
    log, kept, lengths = MemoryLog(), RewardCurves(), set()
    projector = Projector(log, engine, clock=ManualClock())
    # Of each partition in order, so that a step may be there before the experiences that it was trained on.
    drafts = interleaved(run.recorder.drafts, seed)
    for start in range(0, len(drafts), 10):
        await log.append(drafts[start : start + 10])
        await projector.catch_up()
        async with engine.connect() as connection:
            points = await kept.of(connection, run.id)
            assert points == await RewardCurves().of(connection, run.id)
        lengths.add(len(points))
    assert [point.step for point in points] == [3, 4, 5, 6, 7]
    assert len(lengths) > 1
    assert all(point.experiences == 8 for point in points)
    await projector.close()


async def test_steps_that_are_taken_up_again_are_read_again(engine: AsyncEngine) -> None:
    run = SyntheticRun(Recorder(), faults=False).write()
    log, kept = MemoryLog(), RewardCurves()
    await log.append(run.recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock())
    await projector.catch_up()
    async with engine.connect() as connection:
        before = await kept.of(connection, run.id)
    written = len(run.recorder.drafts)
    run.recorder.write(GenerationStarted(generation=1, version=3), run.id, role="trainer")
    again = StepCompleted(
        batch=run.batches[-1], step=4, stage=1, generation=1, checksum="c", items=8, tokens=8, duration_s=1.0
    )
    run.recorder.write(again, run.id, role="trainer")
    await log.append(run.recorder.drafts[written:])
    await projector.catch_up()
    async with engine.connect() as connection:
        after = await kept.of(connection, run.id)
        assert after == await RewardCurves().of(connection, run.id)
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1].reward_mean == before[2].reward_mean != before[1].reward_mean
    await projector.close()


async def test_too_many_points_are_forgotten(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "KEPT_POINTS", 4)
    recorder, log, kept = Recorder(), MemoryLog(), RewardCurves()
    runs = [SyntheticRun(recorder, name=name, faults=False).write() for name in ("a", "b")]
    await log.append(recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock())
    await projector.catch_up()
    async with engine.connect() as connection:
        for run in (*runs, *runs):
            assert await kept.of(connection, run.id) == await RewardCurves().of(connection, run.id)
    await projector.close()


async def test_a_long_curve_is_thinned_by_the_mean_of_neighbours(engine: AsyncEngine) -> None:
    run = SyntheticRun(Recorder(), steps=7, faults=False).write()
    log, curves = MemoryLog(), RewardCurves()
    await log.append(run.recorder.drafts)
    projector = Projector(log, engine, clock=ManualClock())
    await projector.catch_up()
    async with engine.connect() as connection:
        points = await curves.of(connection, run.id)
        assert await curves.of(connection, run.id, most=7) == points
        thinned = await curves.of(connection, run.id, most=3)
    assert [point.step for point in thinned] == [5, 8, 9], "no more points than asked for"
    for point, whole in zip(thinned, (points[:3], points[3:6], points[6:]), strict=True):
        assert point.experiences == sum(each.experiences for each in whole)
        weighted = sum(each.reward_mean * each.experiences for each in whole) / point.experiences
        assert point.reward_mean == pytest.approx(weighted)
        assert point.reward_min == min(each.reward_min for each in whole)
        assert point.reward_max == max(each.reward_max for each in whole)
    await projector.close()
