"""Workflows that swallow their cancellation: the run goes on without them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.ops import limits
from rftd.ops.errors import RolloutTimeoutError, WorkError
from rftd.ops.logs import logger
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify
from rftd.workers.workflows.orphans import Orphans

DEAF = '''
import asyncio
from rftd.workers.workflows.simple import SimpleWorkflow
released = []
class Deaf(SimpleWorkflow):
    """Never returns on the row of 3+3, whoever asks it to stop."""
    async def run(self, task, model, reward):
        while "3+3=" == str(task.prompt).strip() and not released:
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                pass
        return await super().run(task, model, reward)
'''


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A third party's workflow by the name `deaf`; those that still run are let go at the end."""
    install(tmp_path, "deaf_workflow", DEAF, {"rftd.workflows": {"deaf": "deaf_workflow:Deaf"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(limits, "CANCEL_GRACE_S", 0.05)
    import deaf_workflow  # type: ignore[import-not-found]

    yield deaf_workflow
    deaf_workflow.released.append(True)
    del sys.modules["deaf_workflow"]


async def driven(tmp_path: Path, clock, ids, fake_world) -> tuple[RunState, int]:
    """The state of a run with a row that never ends, and how many processes it took."""
    log = await SqliteLog.open(tmp_path / "log")
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    stage = msgspec.structs.replace(
        stage,
        taskset=msgspec.structs.replace(stage.taskset, workflow="deaf"),
        rollout=msgspec.structs.replace(stage.rollout, max_timeout_s=0.3),
    )
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], stage))
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(90):
        await run.drive()
    report = await verify(log)
    assert report.clean, report.findings
    await log.close()
    assert not run.state.roster.live
    return run.state, len(run.state.roster.gone)


@pytest.mark.anyio
async def test_a_rollout_that_cannot_be_ended_fails_and_frees_its_place(
    tmp_path: Path, clock, ids, fake_world, deaf: ModuleType
) -> None:
    state, processes = await driven(tmp_path, clock, ids, fake_world)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert processes == 2, "one trainer, one explorer"
    assert state.replay_buffer.books.failed_rollouts >= 4
    assert state.groups.last_error[0] == RolloutTimeoutError.code
    assert "CancelledError" in state.groups.last_error[1]


@pytest.mark.anyio
async def test_an_explorer_with_too_many_of_them_is_started_anew(
    tmp_path: Path, clock, ids, fake_world, deaf: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ORPHANED_ROLLOUTS", 4)
    state, processes = await driven(tmp_path, clock, ids, fake_world)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert processes == 3
    left = [gone for gone in state.roster.gone.values() if gone.code]
    assert [gone.code for gone in left] == [WorkError.code]
    assert "4 rollouts did not end" in left[0].reason


@pytest.mark.anyio
async def test_an_orphan_that_ends_after_all_no_longer_counts() -> None:
    ending = asyncio.Event()

    async def deaf() -> None:
        while not ending.is_set():
            with suppress(asyncio.CancelledError):
                await ending.wait()

    orphans = Orphans(logger(), grace_s=0.01, most=1)
    task = asyncio.ensure_future(deaf())
    await asyncio.sleep(0)
    assert await orphans.end({task: "deaf"}) == {task}
    assert orphans.too_many
    ending.set()
    await asyncio.wait([task])
    assert (orphans.count, orphans.too_many) == (0, False)


def test_a_process_with_an_orphan_ends() -> None:
    script = textwrap.dedent(
        """
        import asyncio
        from rftd.ops.logs import logger
        from rftd.workers.workflows.orphans import Orphans

        async def deaf():
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

        async def slow():
            await asyncio.sleep(60)

        async def main():
            orphans = Orphans(logger(), grace_s=0.01, most=1)
            tasks = {asyncio.create_task(work()): work.__name__ for work in (slow, deaf)}
            await asyncio.sleep(0)
            left = await orphans.end(tasks)
            assert [tasks[task] for task in left] == ["deaf"] and orphans.count == 1
            assert orphans.too_many

        asyncio.run(main())
        print("left")
        """
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "left" in done.stdout, done.stderr
