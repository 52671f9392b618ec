"""Forks on fake engines: the same history, then their own way; equal weights where nothing was changed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from fork_desk import STEPS, ForkDesk

from rftd.streams.log import EventLog


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def weights(desk: ForkDesk, experiment: UUID) -> dict[int, str]:
    """The checksum of each version that the experiment's own steps made."""
    return {step: done.checksum for step, done in (await desk.record(experiment)).surviving().items()}


@pytest.mark.anyio
@pytest.mark.parametrize("at_step", [0, 2, 3, 4, 7, 8])
async def test_a_fork_without_changes_makes_the_weights_of_its_parent(desk: ForkDesk, fake_world, at_step: int) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        fork = await desk.fork(supervisor, parent, at_step)
        await desk.completed(fork.experiment)
    made, own = await weights(desk, parent), await weights(desk, fork.experiment)
    assert sorted(own) == list(range(at_step + 1, STEPS + 1))
    assert own == {step: made[step] for step in own}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
