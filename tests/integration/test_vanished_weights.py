"""Weights on the disk that somebody removed: explorers wait, the trainer publishes them again, the run ends."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic.until import until

from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.streams.spec.sections import Synchronizer
from rftd.workers.training import publishing
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import Exported


@pytest.mark.anyio
@pytest.mark.parametrize("evaluated", [False, True], ids=["for rollouts", "for an evaluation"])
async def test_weights_that_are_gone_from_the_disk_are_published_again(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, evaluated: bool
) -> None:
    """A version's files vanish once it is announced; evaluated ones are made again from the checkpoint before them."""
    sync = Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=2, sync_offset=1)
    changes = {"eval_interval": 2, "eval_on_startup": True} if evaluated else {"evals": ()}
    spec = fake_world.spec(tmp_path, synchronizer=sync, policy=fake_world.fixed(2, 1)["policy"], **changes)
    run = await fake_world.run(log, spec, clock, ids)
    removed: set[str] = set()

    async def remove() -> None:
        for version in (0, 5):
            await until(lambda version=version: any(key[0] >= version for key in run.state.weights.standing), 200.0)
            for key in list(run.state.weights.standing):
                path = run.state.weights.published[key].path
                removed.add(path)
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(remove())
        await run.drive()
        removing.cancel()
    spine = run.state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    assert len(removed) >= 2
    if evaluated:
        assert len(spine.evaluated) == 4
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_weights_whose_bytes_are_damaged_are_published_again_under_another_name(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but who reads them sees it: a trainer that waits reads through what it has announced."""
    monkeypatch.setattr(publishing, "FULL_READS_S", (0.1, 60.0))
    damaged: list[Path] = []
    export = checkpoint.export

    def exported(weights: Any, folder: Path, *, version: int, generation: int) -> Exported:
        made = export(weights, folder, version=version, generation=generation)
        if version == 5 and not damaged:
            path = folder / checkpoint.TENSORS
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            damaged.append(folder)
        return made

    monkeypatch.setattr(checkpoint, "export", exported)
    sync = Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=2, sync_offset=0)
    spec = fake_world.spec(tmp_path, synchronizer=sync, policy=fake_world.fixed(2, 0)["policy"], evals=())
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(240):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED
    assert damaged
    assert not await asyncio.to_thread(damaged[0].exists)
    assert (await fake_world.verified(log)).clean
