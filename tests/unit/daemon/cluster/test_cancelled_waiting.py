"""Whoever waits out errors ends when it is cancelled, though an error takes the place of the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import until

from rftd.daemon.run.registry import Entry, Registry
from rftd.daemon.run.supervisor.runs import Runs, UnderWay
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.serve.reconnecting import opened_in_time, persistently
from rftd.ops.clock import SystemClock
from rftd.ops.logs import logger
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.lost_records import Witness
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio
ENDS_WITHIN_S = 20.0


async def ends(task: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait({task}, timeout=ENDS_WITHIN_S)
    assert done, "it goes on after it was cancelled"
    assert task.cancelled(), "it went on after it was cancelled"


async def hindered(started: asyncio.Event) -> None:
    """What cleans up after itself, in vain; the second time nothing hinders it."""
    if started.is_set():
        return
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        raise ConnectionError("the server has gone")


async def waiting(work: Callable[[], Awaitable[None]]) -> None:
    await opened_in_time(work, on_error=lambda _: None, clock=SystemClock())


async def working(work: Callable[[], Awaitable[None]]) -> None:
    await persistently(work, "part", clock=SystemClock(), logger=logger())


@pytest.mark.parametrize("patient", [waiting, working])
async def test_reconnecting_ends(patient: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
    started = asyncio.Event()
    task: asyncio.Task[None] = asyncio.ensure_future(patient(lambda: hindered(started)))  # type: ignore[arg-type]
    await started.wait()
    task.cancel()
    await ends(task)


class Hindered:
    """A run that cleans up after itself, in vain."""

    remembers: Witness | None = None

    def __init__(self, experiment: UUID) -> None:
        self.state = RunState(experiment)
        self.started = asyncio.Event()

    async def drive(self) -> None:
        await hindered(self.started)

    async def drain(self) -> None: ...

    async def gone(self) -> None: ...

    def waits(self) -> list[Wait]:
        return []


async def test_nothing_is_noted_of_a_run_that_was_stopped() -> None:
    """It was stopped because the log has lost something of it: nothing may be appended."""
    run = SyntheticRun(Recorder())
    run.begin()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    registry, made = Registry(log), Hindered(run.id)
    noted: list[BaseException] = []
    await registry.catch_up()

    def make(entry: Entry) -> UnderWay:
        return made

    async def note(entry: Entry, error: BaseException) -> None:
        noted.append(error)

    async def line() -> list[Entry]:
        return [] if made.started.is_set() else list(registry.entries.values())

    runs = Runs(make, slots=1, clock=SystemClock(), logger=logger(), note=note)
    driving = asyncio.ensure_future(runs.drive(line))
    await made.started.wait()
    runs.stop(run.id)
    await until(lambda: run.id not in runs)
    assert noted == []
    assert run.id not in runs.broken
    driving.cancel()
    await ends(driving)
