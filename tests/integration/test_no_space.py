"""A run without space writes nothing, says why, obeys its owner, and goes on by itself when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from synthetic.until import until

from rftd.daemon.run.supervisor.disk_guard import DiskGuard, DiskLimits
from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.errors import ConflictError
from rftd.ops.logs import logger
from rftd.storage.files.disk import Volume
from rftd.streams.events import experiment as life
from rftd.streams.folds.spine import Status
from rftd.streams.log.deadletters import decode_ours
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import EXPERIMENTS, partition_of
from rftd.workers.control.hold import DISK_FULL


class Full:
    """A disk that is full until it is told otherwise."""

    free_bytes = 10

    def volume(self, folder: Path) -> Volume:
        return Volume(size_bytes=1 << 40, free_bytes=self.free_bytes)

    def used_bytes(self, folders: Sequence[Path]) -> int:
        return 0


@pytest.mark.anyio
async def test_a_run_waits_for_space(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    disk = Full()
    guard = DiskGuard(disk, tmp_path, DiskLimits(reserve_bytes=100), clock=clock, logger=logger())
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger(), guard=guard)
    spine = run.state.spine
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        await until(lambda: spine.status is Status.PAUSED)
        assert spine.cause == DISK_FULL, spine.reason
        assert spine.reason.startswith("10 B are free on the volume of "), spine.reason
        await until(lambda: {wait.state for wait in run.waits()} == {DISK_FULL, "paused"})
        waits = {wait.role: wait for wait in run.waits()}
        assert waits["experiment"].waiting_for.startswith("space: 10 B are free")
        assert "--disk-reserve" in waits["experiment"].unblock
        assert "space" in waits["trainer"].waiting_for
        assert not run.state.roster.live, "nobody was started who would write"
        assert not run.state.roster.gone, "nobody was started who would write"
        with pytest.raises(ConflictError, match="paused: disk_full: 10 B are free"):
            await run.command(life.ExperimentResumed(), Request(ids.new()))
        await run.command(life.ExperimentPaused(reason="mine"), Request(ids.new()))
        disk.free_bytes = 1000
        await guard.look()
        await until(lambda: spine.cause == "" and guard.shortage is None)
        turns = run._looked_s
        await until(lambda: run._looked_s > turns)
        assert spine.status is Status.PAUSED, "what a person paused, a person resumes"
        await run.command(life.ExperimentResumed(), Request(ids.new()))
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    events = await _life(log, experiment)
    assert events == ["started", "paused", "paused", "resumed", "completed"]
    assert (await fake_world.verified(log)).clean


async def _life(log: EventLog, experiment) -> list[str]:
    partition, offset, found = partition_of(EXPERIMENTS, experiment), 0, []
    while records := await log.read(partition, offset):
        found += [decode_ours(record).head.type for record in records]
        offset = records[-1].offset + 1
    kinds = ("started", "paused", "resumed", "completed")
    return [type.partition(".")[2] for type in found if type in {f"experiment.{kind}" for kind in kinds}]
