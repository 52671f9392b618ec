"""A daemon that was away takes up its own runs again, and none that another daemon has taken over meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.until import until

from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.why.run_snapshot import Phase
from rftd.ops.clock import Clock
from rftd.ops.errors import FencedError
from rftd.ops.ids import Ids
from rftd.ops.logs import logger
from rftd.streams.events.experiment import ExperimentCancelled
from rftd.streams.log.log import EventLog

pytestmark = pytest.mark.anyio


async def leads(run: Run) -> None:
    """Returns once it decides: while it fences, what it was appending might land after its end."""
    await until(lambda: run.snapshot().phase is Phase.LEADING)


async def test_what_another_daemon_took_over_is_not_taken_back(
    tmp_path: Path, log: EventLog, clock: Clock, ids: Ids, fake_world: Any
) -> None:
    experiment = await fake_world.submitted(log, fake_world.spec(tmp_path), clock, ids)
    executor = fake_world.executor(log, clock, ids)
    led: dict[UUID, set[UUID]] = {owner: set() for owner in (ids.new(), ids.new())}
    away, newer = led

    def run_of(owner: UUID) -> Run:
        """A run as a daemon makes it each time that it takes the experiment up; its workers would be elsewhere."""
        parts = {"clock": clock, "ids": ids, "logger": logger(), "roles": frozenset[str](), "led": led[owner]}
        return Run(log, experiment, executor, owner=owner, **parts)

    async with asyncio.timeout(60):
        for _ in range(2):  # its own it takes up again
            async with asyncio.TaskGroup() as tasks:
                run = run_of(away)
                driving = tasks.create_task(run.drive())
                await leads(run)
                driving.cancel()  # as a log that does not answer ends it
        assert led[away] == {experiment}
        taken_over = run_of(newer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(taken_over.drive())
            await leads(taken_over)
            with pytest.raises(FencedError, match="role controller has a newer owner"):
                await run_of(away).drive()
            await taken_over.command(ExperimentCancelled(reason="seen"), Request(ids.new()))
    report = await fake_world.verified(log)
    assert report.clean, report.findings
