"""A task that failed is retried while its stage is under way: it is trained, and everything balances."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from rftd.streams.events.task import GroupClosed, TaskRetried
from rftd.streams.folds.failed_tasks import FailedTask, FailedTasks
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of

GATED = '''
import asyncio
from rftd.ops.errors import RolloutError
from rftd.workers.workflows.simple import SimpleWorkflow
healed = asyncio.Event()
class Gated(SimpleWorkflow):
    """The row of 0+0 fails until it is healed; the others wait for that."""
    async def run(self, task, model, reward):
        if "0+0=" == str(task.prompt).strip():
            if not healed.is_set():
                raise RolloutError("the judge is away")
        else:
            await healed.wait()
        return await super().run(task, model, reward)
'''


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    install(tmp_path, "gated_workflow", GATED, {"rftd.workflows": {"gated": "gated_workflow:Gated"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    import gated_workflow  # type: ignore[import-not-found]

    yield gated_workflow
    sys.modules.pop("gated_workflow", None)


@pytest.mark.anyio
async def test_it_is_given_out_once_more(
    tmp_path: Path, log: EventLog, clock: Any, ids: Any, fake_world: Any, gated: ModuleType
) -> None:
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    stage = msgspec.structs.replace(stage, taskset=msgspec.structs.replace(stage.taskset, workflow="gated"))
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], stage))
    run = await fake_world.run(log, spec, clock, ids)
    experiment = run.state.experiment
    request = Request(derive(experiment, "retry"))
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(run.drive())
        failed = await _failed(log, driving)
        assert (failed.members, failed.code) == (0, "RFTD-WRK-002")
        assert "judge is away" in failed.reason
        assert len(failed.tries) == 1, "the explorer itself tries again"
        first = await run.retry(failed, request, by="me", reason="it is back")
        assert await run.retry(failed, request, by="me", reason="it is back") == first
        gated.healed.set()
        await driving
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    with pytest.raises(ConflictError, match="completed"):
        await run_of_the_ended(run, failed)
    closed = await _closed(log, experiment)
    retry = next(event.retry for event in await _spine(log, experiment) if isinstance(event, TaskRetried))
    assert (closed[retry].sequence, closed[retry].failed) == (failed.sequence, 0)
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def run_of_the_ended(run: Run, failed: FailedTask) -> None:
    """The run of an ended experiment, for a client whose request comes while the run says goodbye."""
    asking = asyncio.ensure_future(run.retry(failed, Request(derive(failed.group, "late")), by="me", reason=""))
    await asyncio.sleep(0)
    run._inbox.close()
    await asking


async def _failed(log: EventLog, driving: asyncio.Task[None]) -> FailedTask:
    """The task that failed, once it did."""
    while True:
        assert not driving.done()
        if failed := await FailedTasks().read(log):
            assert failed[0].tries, "a closing is read with its lease"
            return failed[0]
        await asyncio.sleep(0.05)


async def _closed(log: EventLog, experiment: Any) -> dict[Any, GroupClosed]:
    records = await log.read(partition_of(topics.TASKS, experiment), 0, max_records=100_000)
    events = [decode(record).event for record in records]
    return {event.group: event for event in events if isinstance(event, GroupClosed)}


async def _spine(log: EventLog, experiment: Any) -> list[Any]:
    records = await log.read(partition_of(topics.EXPERIMENTS, experiment), 0, max_records=100_000)
    return [decode(record).event for record in records]
