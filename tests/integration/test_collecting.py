"""Garbage goes by itself, what events name and what forks need stays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.until import until

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from rftd.storage.files.checkpoints import latest, mark_latest, verify
from rftd.storage.files.unreferenced import GRACE_S
from rftd.streams.folds.spine import Kept
from rftd.streams.log.log import EventLog

SLOW = ("trainer.engine_args={step_s: 0.2}",)
STRAYS = ("warmup/global_step_99/actor/x", "rft/.global_step_3.tmp/y", "weights/v77-g0/z", "artifacts/ab/" + "ab" * 32)


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


def strew(job: Path, *names: str, age_s: float = 2 * GRACE_S) -> None:
    """Writes files that no event names, some time ago."""
    for name in names:
        path = job / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
        for each in (path, *path.parents[: len(Path(name).parts) - 1]):
            os.utime(each, (path.stat().st_ctime - age_s,) * 2)


def left(job: Path, *names: str) -> set[str]:
    return {name for name in names if (job / name).exists()}


async def under_way(desk: ForkDesk, supervisor: Supervisor, *overrides: str) -> tuple[UUID, asyncio.Future[UUID]]:
    """An experiment that was paused after its first steps, and its end."""
    await until(lambda: not supervisor.runs)
    submitted = asyncio.ensure_future(desk.submit(supervisor, *SLOW, *overrides))
    await until(lambda: any(run.state.spine.furthest >= 1 for run in supervisor.runs))
    experiment = next(iter(supervisor.runs)).state.experiment
    await supervisor.pause(experiment, reason="", request_id=derive(experiment, "pause"))
    return experiment, submitted


@pytest.mark.anyio
async def test_an_end_tidies_the_folder(desk: ForkDesk, ids) -> None:
    young = "artifacts/cd/" + "cd" * 32
    async with desk.open() as supervisor:
        experiment, submitted = await under_way(desk, supervisor)
        job = Path((await desk.state(experiment)).spine.spec.job_dir)
        await asyncio.to_thread(strew, job, *STRAYS)
        await asyncio.to_thread(strew, job, young, age_s=0.0)
        await supervisor.resume(experiment, reason="", request_id=ids.new())
        await submitted
        await until(lambda: not supervisor.runs)
    state = await desk.completed(experiment)
    assert left(job, *STRAYS, young) == {young}, "somebody may be about to name it"
    for checkpoint in state.checkpoints.values():
        verify(Path(checkpoint.path), checkpoint.files)
    assert state.checkpoints
    assert await asyncio.to_thread(lambda: list(job.glob("snapshots/*.fold"))) == []


@pytest.mark.anyio
async def test_a_daemon_goes_on_with_tidying_that_was_cut_off(desk: ForkDesk) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor)
        await until(lambda: not supervisor.runs)
    job = Path((await desk.state(experiment)).spine.spec.job_dir)
    # What an end leaves nothing of, half-written files and published weights, says that tidying was cut off.
    rest = tuple(name for name in STRAYS if ".tmp" not in name and not name.startswith("weights/"))
    newest = latest(job / "warmup")
    await asyncio.to_thread(strew, job, *rest)
    mark_latest(job / "warmup", 99)
    async with desk.open() as supervisor:
        await supervisor.collect()
        assert latest(job / "warmup") == 99
        assert left(job, *rest) == set(rest), "a folder that was tidied is not looked through at each start"
        strew(job, "snapshots/" + "0" * 16 + ".fold")
        await supervisor.collect()
        assert left(job, *rest) == set()
        assert latest(job / "warmup") == newest
        mark_latest(job / "warmup", 99)
        await supervisor.collect()
        assert latest(job / "warmup") == newest, "a daemon was killed before it had mended the marker"
        strew(job, *rest)
        await supervisor.collect(every=True)
        assert left(job, *rest) == set()
    for checkpoint in (await desk.completed(experiment)).checkpoints.values():
        verify(Path(checkpoint.path), checkpoint.files)


@pytest.mark.anyio
async def test_what_living_forks_may_need_stays(desk: ForkDesk, ids, fake_world) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        child = (await desk.fork(supervisor, parent, 6, name="child")).experiment
        await desk.completed(child)
        blocker, submitted = await under_way(desk, supervisor, "name=blocker")
        grandchild = await desk.fork(supervisor, child, 8, name="grandchild")
        assert grandchild.parent == child
        for ancestor in (parent, child):
            with pytest.raises(ConflictError, match=r"grandchild \(queued\), forked from .* may need its files"):
                await supervisor.archive(ancestor, to="", request_id=ids.new())
            with pytest.raises(ConflictError, match=r"grandchild \(queued\)"):
                await supervisor.remove(ancestor, reason="", archive=False, request_id=ids.new())
            assert (await desk.state(ancestor)).spine.kept is Kept.HERE
        with pytest.raises(ConflictError, match="blocker is paused; only ended experiments can be removed"):
            await supervisor.remove(blocker, reason="", archive=False, request_id=ids.new())
        await supervisor.cancel(grandchild.experiment, reason="", request_id=ids.new())
        await supervisor.archive(parent, to="", request_id=ids.new())
        with pytest.raises(ConflictError, match="the files of sums are in an archive"):
            await desk.fork(supervisor, parent, 6)
        await supervisor.restore(parent, source="", request_id=ids.new())
        again = await desk.fork(supervisor, parent, 6, name="again")
        await supervisor.cancel(blocker, reason="", request_id=ids.new())
        await submitted
        await desk.completed(again.experiment)
        await supervisor.remove(parent, reason="", archive=False, request_id=ids.new())
        with pytest.raises(ConflictError, match="the files of sums were removed"):
            await desk.fork(supervisor, parent, 6)
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
