"""Forks are replayed: their own steps, after their ancestors'; on a file and on Kafka, and after a move."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import STEPS, ForkDesk

from rftd.ops.errors import ConflictError, UsageError
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.training.replay import Beginning, ReplayOrder, ReplayOutcome, replay
from rftd.workers.training.rerun import Compared


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def replayed(log: EventLog, experiment: UUID, clock, **order) -> tuple[Beginning, list[int], ReplayOutcome]:
    """A replay's outcome: where it began, the steps that were executed, their weights; nothing may be appended."""
    begun: list[Beginning] = []
    steps: list[Compared] = []
    heads = await log.heads()
    outcome = await replay(
        log, experiment, ReplayOrder(**order), clock=clock, on_begin=begun.append, on_step=steps.append
    )
    assert await log.heads() == heads
    return begun[0], [each.step for each in steps], outcome


@pytest.mark.anyio
async def test_a_forks_own_steps_after_its_ancestors(desk: ForkDesk, clock) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        one = await desk.fork(supervisor, parent, 6, "algorithm.optimizer.lr=0.25")
        first = await desk.completed(one.experiment)
        two = await desk.fork(supervisor, one.experiment, 8)
        await desk.completed(two.experiment)
    await desk.left()
    for experiment, at_step in ((one.experiment, 6), (two.experiment, 8)):
        beginning, steps, outcome = await replayed(desk.log, experiment, clock)
        assert (beginning.version, beginning.checkpoint) == (at_step, "")
        assert steps == list(range(at_step + 1, STEPS + 1))
        assert outcome.different == ()
        beginning, steps, outcome = await replayed(desk.log, experiment, clock, from_checkpoint=True)
        assert beginning.checkpoint
        assert beginning.version == 8
        assert steps == [9, 10]
        assert outcome.different == ()
    with pytest.raises(UsageError, match="executed no step 6 itself"):
        await replayed(desk.log, one.experiment, clock, to_step=6)
    _, steps, outcome = await replayed(desk.log, parent, clock)
    assert steps == list(range(1, STEPS + 1))
    assert outcome.different == ()
    assert first.spine.spec is not None
    shutil.rmtree(Path(first.spine.spec.job_dir).parent)  # the checkpoints of them all
    beginning, steps, outcome = await replayed(desk.log, two.experiment, clock, from_checkpoint=True)
    assert beginning.checkpoint == ""
    assert steps == [9, 10]
    assert outcome.different == ()


@pytest.mark.anyio
async def test_a_fork_moves_after_its_parent(desk: ForkDesk, fake_world, clock, tmp_path: Path) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        fork = await desk.fork(supervisor, parent, 6)
        await desk.completed(fork.experiment)
    first = await export_experiment(desk.log, parent, tmp_path / "parent.rftd", release="1", clock=clock)
    second = await export_experiment(desk.log, fork.experiment, tmp_path / "fork.rftd", release="1", clock=clock)
    assert first.notes == ()
    assert second.notes == (f"a fork: sums ({parent}) must be imported before it",)
    other = await SqliteLog.open(tmp_path / "there")
    try:
        with pytest.raises(ConflictError, match=f"a fork of experiment {parent}, which is not here") as refused:
            await import_experiment(other, tmp_path / "fork.rftd", home=tmp_path / "home", clock=clock)
        assert refused.value.fix is not None
        assert f"rftd export {parent}" in refused.value.fix
        assert await other.heads() == {}
        assert not (tmp_path / "home").exists()
        for name in ("parent", "fork"):
            done = await import_experiment(other, tmp_path / f"{name}.rftd", home=tmp_path / "home", clock=clock)
            assert done.equal
        assert (await fake_world.verified(other)).clean
        _, steps, outcome = await replayed(other, fork.experiment, clock)
        assert steps == [7, 8, 9, 10]
        assert outcome.different == ()
    finally:
        await other.close()
