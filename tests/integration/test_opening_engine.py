"""An explorer whose engine takes long to open is heard of meanwhile, is shown as such, and is leased nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from synthetic.daemon.daemon_parts import BASE
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.log.log_reading import read_decoded
from synthetic.until import until

from rftd.daemon.http.api.app import make_app
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.run.why.wait import Wait
from rftd.daemon.run.why.workers import opening_waits
from rftd.ops import limits
from rftd.ops.clock import SystemClock, time_ns_of
from rftd.ops.errors import DeviceMemoryError
from rftd.ops.words import Level
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.worker import Heartbeat, WorkerStarted
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.rollout import explorer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]


class Gate:
    """Opens engines once it is open itself."""

    def __init__(self, opened: Callable[..., Awaitable[RolloutEngine]]) -> None:
        self._opened = opened
        self.reached, self.open, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def open_engine(self, *given: Any, **more: Any) -> RolloutEngine:
        self.reached.set()
        try:
            await self.open.wait()
        finally:
            self.closed.set()
        if self.error is not None:
            raise self.error
        return await self._opened(*given, **more)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate(explorer.open_engine)
    monkeypatch.setattr(explorer, "open_engine", made.open_engine)
    monkeypatch.setattr(limits, "HEARTBEAT_INTERVAL_S", 0.02)
    return made


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock: Any, ids: Any, fake_world: Any) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def events_of(log: EventLog) -> list[Event]:
    """Every event of workers, their heartbeats and tasks, partition after partition."""
    return [record.event for record in await read_decoded(log, topics.WORKERS, topics.HEARTBEATS, topics.TASKS)]


async def beats_of(log: EventLog, worker: str) -> list[Heartbeat]:
    return [each for each in await events_of(log) if isinstance(each, Heartbeat) and str(each.worker) == worker]


async def shown(supervisor: Supervisor, log: EventLog, folder: Path, experiment: UUID) -> str:
    """The line `waiting` of `rftd get`."""
    engine = open_database(sqlite_url(folder / "state.db"))
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    app = make_app(operations=supervisor, log=log, engine=engine, projector=projector)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
        page = (await client.get(f"/v1/experiments/{experiment}")).raise_for_status().json()
    await engine.dispose()
    return str(page["waiting"])


async def test_it_beats_is_told_of_and_is_leased_nothing_before_it_is_ready(
    desk: ForkDesk, log: EventLog, tmp_path: Path, gate: Gate, fake_world: Any
) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor)
        await asyncio.wait_for(gate.reached.wait(), 60)
        # The warm-up stage is trained meanwhile; then the dispatcher would lease, had it somebody to lease to.
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.stage == 1)

        async def opening() -> list[Wait]:
            return [wait for wait in (await supervisor.why(experiment)).waits if wait.role == "explorer"]

        async with asyncio.timeout(60):
            while not (waits := await opening()) or waits[0].state != "open_engine":  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            (wait,) = waits
            assert wait.worker is not None and wait.since_ns is not None
            beats: list[Heartbeat] = []
            while len(beats) < 5:
                # The log may answer at once: without a pause whoever beats on this loop would never have a turn.
                await asyncio.sleep(0.01)
                beats = await beats_of(log, wait.worker)
        assert (wait.slot, wait.level) == (0, Level.WORKS)
        assert wait.waiting_for.startswith("opens its engine (process ")
        assert (await opening())[0].since_ns == pytest.approx(wait.since_ns, abs=1_000_000), "it began once"
        line = await shown(supervisor, log, tmp_path, experiment)
        said = r"explorer 0 opens its engine \(process \d+\), since (\S+)"
        since = re.fullmatch(said, line)
        assert since is not None, line
        assert time_ns_of(since[1]) == pytest.approx(wait.since_ns, abs=2_000_000)
        assert {(beat.state, beat.free, beat.leases) for beat in beats} <= {("load", 0, ()), ("open_engine", 0, ())}
        joined = [each for each in await events_of(log) if isinstance(each, WorkerStarted)]
        assert "explorer" not in {each.role for each in joined}
        assert not [each for each in await events_of(log) if isinstance(each, TaskLeased)]
        ((place, used_bytes),) = supervisor.used_bytes(experiment).items()
        run = supervisor.runs.of(experiment)
        assert run is not None and used_bytes > 1 << 20
        assert place == ("trainer", run.state.spine.stage_spec().name), "who has not joined is not counted"

        gate.open.set()
        await desk.completed(experiment)
        assert {str(each.worker) for each in await events_of(log) if isinstance(each, TaskLeased)} == {wait.worker}
        later = [beat.state for beat in await beats_of(log, wait.worker)]
        assert later[-1] != "open_engine"
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_one_that_cannot_be_opened_says_why_and_is_shown_no_more(
    desk: ForkDesk, log: EventLog, gate: Gate
) -> None:
    gate.error = DeviceMemoryError("9 GiB are needed", fix="take a smaller model")
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor)
        await asyncio.wait_for(gate.reached.wait(), 60)
        gate.open.set()
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.cause)
        run = supervisor.runs.of(experiment)
        assert run is not None
        assert "9 GiB are needed" in run.state.spine.reason
        assert not [wait for wait in (await supervisor.why(experiment)).waits if wait.state == "open_engine"]
        assert list(opening_waits(run.snapshot())) == []
