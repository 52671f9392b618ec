"""A plan is of the step after the last one that is planned: any other plan has no effect, and is found."""

from __future__ import annotations

import pytest
from synthetic.log.busy_run import fold
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SFT_STEPS, SyntheticRun

from rftd.streams.events import batch
from rftd.streams.log.shared_history import plan_offsets
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio


@pytest.fixture
def run() -> SyntheticRun:
    """A run whose dataset stage is over, and in which one group waits."""
    return SyntheticRun(Recorder(), faults=False).warmed_up()


async def log_of(recorder: Recorder) -> MemoryLog:
    log = MemoryLog()
    await log.append(recorder.drafts)
    return log


async def findings(run: SyntheticRun) -> list[str]:
    report = await verify(await log_of(run.recorder))
    return [finding.what for finding in report.findings if finding.rule == "trained-once"]


@pytest.mark.parametrize("ahead", [-SFT_STEPS, -1, 0, 2, 3, 1 << 30])
async def test_a_plan_that_leaves_steps_out_or_comes_back_is_void(run: SyntheticRun, ahead: int) -> None:
    before = fold(run.id, run.recorder.records)
    taken = run.waiting[:]
    version = run.version
    run.version = version + ahead - 1
    run.plan(stage=1, again=taken)
    run.version = version
    run.ahead.clear()
    state = fold(run.id, run.recorder.records)
    assert (state.spine.planned, state.spine.plans) == (before.spine.planned, before.spine.plans)
    assert state.replay_buffer.counts() == before.replay_buffer.counts()
    [what] = await findings(run)
    assert f"is a plan of step {version + ahead}, while the next one to plan was step {version + 1}" in what
    run.plan(stage=1, take=len(taken))
    state = fold(run.id, run.recorder.records)
    assert state.spine.planned == version + 1
    assert state.replay_buffer.counts()["planned"] == len(taken)
    assert await findings(run) == [what]


async def test_a_fork_is_planned_from_the_step_after_its_parents(run: SyntheticRun) -> None:
    fork = SyntheticRun(run.recorder, name="fork", faults=False, parent=run.id)
    fork.begin()
    fork.warm_up()
    fork.explore()
    waiting = fold(fork.id, run.recorder.records).replay_buffer.counts()["waiting"]
    fork.version = 0
    fork.plan(stage=1, again=fork.waiting[:])
    fork.ahead.clear()
    fork.version = SFT_STEPS
    state = fold(fork.id, run.recorder.records)
    assert state.replay_buffer.counts()["waiting"] == waiting
    fork.plan(stage=1, take=waiting)
    state = fold(fork.id, run.recorder.records)
    assert list(state.spine.plans) == [SFT_STEPS + 1]
    assert state.replay_buffer.counts()["planned"] == waiting
    offsets = await plan_offsets(await log_of(run.recorder), fork.id, first=0)
    assert offsets == {SFT_STEPS + 1: state.spine.plans[SFT_STEPS + 1].offset}
    [what] = await findings(run)
    assert f"while the next one to plan was step {SFT_STEPS + 1}" in what


async def test_after_an_abandoned_plan_its_step_is_the_next_one(run: SyntheticRun) -> None:
    abandoned = run.plan(stage=1, again=run.waiting[:])
    gone = batch.BatchAbandoned(batch=abandoned, step=run.version + 1, code="X", reason="no")
    run.recorder.write(gone, run.id, role="planner")
    run.ahead.clear()
    run.plan(stage=1, take=len(run.waiting))
    assert list(fold(run.id, run.recorder.records).spine.plans) == [run.version + 1]
    assert await findings(run) == []
