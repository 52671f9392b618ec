"""A run whose workers are not placed: it decides on, and says what is waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from synthetic.until import until
from synthetic.worlds.launchers import BUSY, SlowCluster

from rftd.daemon.run.supervisor.inbox import Request
from rftd.ops.clock import ManualClock
from rftd.streams.events import experiment as life
from rftd.streams.folds.spine import Status
from rftd.streams.memory import MemoryLog


@pytest.mark.anyio
async def test_the_run_decides_on_while_nothing_is_placed(tmp_path: Path, clock, ids, fake_world: Any) -> None:
    """The run does not wait for a start itself: decisions would stand still for as long as a cluster places."""
    log = MemoryLog()
    cluster = SlowCluster(ManualClock())
    run = await fake_world.run(log, fake_world.spec(tmp_path), clock, ids, cluster)
    driving = asyncio.ensure_future(run.drive())
    try:
        async with asyncio.timeout(60):
            await until(lambda: len(cluster.workers) == 2)
            await run.command(life.ExperimentPaused(reason="a look"), Request(ids.new()))
            assert run.state.spine.status is Status.PAUSED
            await run.command(life.ExperimentResumed(), Request(ids.new()))
            assert run.state.spine.status is Status.RUNNING
        waits = {wait.role: wait for wait in run.waits() if wait.role in ("trainer", "explorer")}
        assert {role: wait.waiting_for for role, wait in waits.items()} == {"trainer": BUSY, "explorer": BUSY}
        assert {wait.state for wait in waits.values()} == {"placing"}
        cluster.clock.advance(60.0)
        assert all(worker.pid is not None for worker in cluster.workers.values())
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        await log.close()
