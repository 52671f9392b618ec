"""A workflow that gets stuck, in a whole run: what is given up, given out twice, or ended early does not hold it up."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.ops import limits
from rftd.ops.errors import OverRolloutError
from rftd.streams.events.registry import Event
from rftd.streams.events.task import GroupClosed, TaskLeased
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import TRUTH
from rftd.streams.spec.sections import DynamicTimeout, OverRollout, StragglerReissue
from rftd.streams.sqlite.log import SqliteLog

STUCK = '''
import asyncio, threading
from rftd.workers.workflows.simple import SimpleWorkflow
row, times, threads = "", 0, set()
class Stuck(SimpleWorkflow):
    """Waits for ever in the first `times` rollouts of one row, unless it is cancelled."""
    async def run(self, task, model, reward):
        global times
        threads.add(threading.get_ident())
        if row == str(task.prompt).strip() and times > 0:
            times -= 1
            await asyncio.Event().wait()
        return await super().run(task, model, reward)
'''


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A third party's workflow by the name `stuck`."""
    install(tmp_path, "stuck_workflow", STUCK, {"rftd.workflows": {"stuck": "stuck_workflow:Stuck"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    import stuck_workflow  # type: ignore[import-not-found]

    yield stuck_workflow
    del sys.modules["stuck_workflow"]


async def driven(tmp_path: Path, clock, ids, fake_world, **rollout: Any) -> tuple[RunState, list[Event]]:
    """The state of a run, and its events on leases and groups. A rollout may take ten minutes."""
    log = await SqliteLog.open(tmp_path / "log")
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    stage = msgspec.structs.replace(
        stage,
        taskset=msgspec.structs.replace(stage.taskset, workflow="stuck"),
        rollout=msgspec.structs.replace(stage.rollout, max_timeout_s=600.0, **rollout),
    )
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], stage))
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    records = [record for place in TRUTH if place.stream == topics.TASKS for record in await log.read(place, 0)]
    assert run.state.spine.status is Status.COMPLETED, (run.state.spine.code, run.state.spine.reason)
    books = run.state.replay_buffer.counts()
    assert books["balance"] == 0
    assert books["planned"] == 5 * 16
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    await log.close()
    return run.state, [decode(record).event for record in records]


@pytest.mark.anyio
@pytest.mark.parametrize("partial", [False, True])
async def test_a_step_goes_on_without_the_task_that_is_stuck(
    tmp_path: Path, clock, ids, fake_world, stuck: ModuleType, partial: bool
) -> None:
    stuck.row, stuck.times = "2+2=", 1
    over = OverRollout(ratio=0.25, wait_after_min=0.3, return_partial_tasks=partial)
    state, events = await driven(tmp_path, clock, ids, fake_world, over_rollout=over)
    [given_up] = [each for each in events if isinstance(each, GroupClosed) and each.sequence == 2]
    assert (given_up.code, len(given_up.members)) == (OverRolloutError.code, 3 if partial else 0)
    assert state.replay_buffer.books.failed_rollouts >= given_up.failed == (1 if partial else 4)


@pytest.mark.anyio
async def test_a_second_explorer_ends_what_the_first_is_stuck_in(
    tmp_path: Path, clock, ids, fake_world, stuck: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REISSUE_LEAST_S", 0.3)
    stuck.row, stuck.times = "6+6=", 1
    second = StragglerReissue(enable=True, ratio=1.5)
    state, events = await driven(
        tmp_path, clock, ids, fake_world, explorers=2, concurrency=16, straggler_reissue=second, lease_rollouts=2
    )
    leases = [each for each in events if isinstance(each, TaskLeased)]
    assert {len(each.rollouts) for each in leases if not each.reissue} == {2}
    second = [each for each in leases if each.reissue and each.sequence == 6]
    assert second
    assert state.replay_buffer.books.failed_rollouts == 0
    first = [each for each in leases if not each.reissue and set(each.rollouts) & set(second[0].rollouts)]
    assert second[0].worker not in {each.worker for each in first if each.sequence == 6}


@pytest.mark.anyio
async def test_a_timeout_that_follows_durations_ends_what_is_stuck(
    tmp_path: Path, clock, ids, fake_world, stuck: ModuleType
) -> None:
    stuck.row, stuck.times = "14+4=", 1
    dynamic = DynamicTimeout(enable=True, ratio=3.0)
    _, events = await driven(tmp_path, clock, ids, fake_world, dynamic_timeout=dynamic, threads_each=True)
    timeouts_s = {each.sequence: each.timeout_s for each in events if isinstance(each, TaskLeased)}
    assert timeouts_s[0] == 600.0
    assert timeouts_s[14] < 600.0
    [closed] = [each for each in events if isinstance(each, GroupClosed) and each.sequence == 14]
    assert stuck.times == 0, "a further attempt answered"
    assert len(closed.members) == 4, "a further attempt answered"
    assert stuck.threads
    assert threading.get_ident() not in stuck.threads
