"""A run whose explorers never join says so, for each role, and since when; without a daemon the log says it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.why.answer import why_offline
from rftd.daemon.run.why.wait import Wait
from rftd.ops.errors import NotFoundError
from rftd.ops.logs import logger
from rftd.ops.words import Level
from rftd.streams.events import experiment as life
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.log.log import EventLog
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import Executor, Handle, WorkerOrder

WANTED = {
    ("experiment", "running"),
    ("controller", "steps"),
    ("planner", "experiences"),
    ("dispatcher", "explorers"),
    ("trainer", "wait_batch"),
    ("explorer", "starting"),
}


class Idle:
    """A process that never joins."""

    pid = 4242
    waits = None
    reason = ""

    def __init__(self) -> None:
        self._code: int | None = None

    def exit_code(self) -> int | None:
        return self._code

    def terminate(self) -> None:
        self._code = 0

    kill = terminate


class Deaf:
    """Starts explorers that do nothing at all."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, order: WorkerOrder) -> Handle:
        return self._executor.start(order) if order.role == "trainer" else Idle()

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def lives(self, started: WorkerStarted) -> bool:
        return False

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


@pytest.mark.anyio
async def test_why_a_run_is_stuck(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    run = Run(
        log,
        experiment,
        Deaf(fake_world.executor(log, clock, ids)),
        owner=ids.new(),
        clock=clock,
        ids=ids,
        logger=logger(),
    )
    assert [wait.state for wait in run.waits()] == ["reading"]

    async def until(wanted: set[tuple[str, str]]) -> list[Wait]:
        while not wanted <= {(wait.role, wait.state) for wait in run.waits()}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return run.waits()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(run.drive())
        waits = await until(WANTED)
        since = {wait.role: wait.since_ns for wait in waits}
        assert all(since.values())
        assert [wait.level for wait in waits] == sorted(wait.level for wait in waits)
        [starting] = [wait for wait in waits if wait.state == "starting"]
        assert "process 4242 to join" in starting.waiting_for
        await run.command(life.ExperimentPaused(reason="look at it"), Request(ids.new()))
        later = await until({("experiment", "paused"), ("planner", "paused"), ("trainer", "paused")})
        assert later[0].role == "experiment"
        assert later[0].level is Level.STUCK
        assert "look at it" in later[0].waiting_for
        explorer = next(wait for wait in later if wait.role == "explorer")
        assert explorer.since_ns == since["explorer"], "still the same wait"
        offline = await why_offline(log, spec.name, clock=clock)
        assert not offline.live
        assert offline.status == "paused"
        assert [wait.state for wait in offline.waits[:2]] == ["paused", "not_running"] or [
            wait.state for wait in offline.waits[:2]
        ] == ["not_running", "paused"]
        with pytest.raises(NotFoundError, match="nobody"):
            await why_offline(log, "nobody", clock=clock)
        await run.command(life.ExperimentCancelled(reason="seen"), Request(ids.new()))
        await driving
    [end] = run.waits()
    assert (end.state, end.waiting_for) == ("cancelled", "seen")
    [end] = (await why_offline(log, str(experiment)[:13], clock=clock)).waits
    assert end.state == "cancelled"
