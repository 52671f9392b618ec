"""Errors of experiments on one daemon: each is its own run's pause or failure, never the daemon's end."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.third_party import install
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops import limits
from rftd.ops.errors import CodecError
from rftd.ops.words import Level
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.workers.control.controller import Controller
from rftd.workers.control.hold import ERROR

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]
LONG = ("buffer.total_steps=2000", "trainer.engine_args={step_s: 0.02}")
MOODY = ("deterministic=false", "policy={kind: plugin, name: moody}", *LONG)
CODE = """
from rftd.workers.control.policies.bounded import HardBound

MOODS = {}


class Moody(HardBound):
    def _feel(self, name):
        if name in MOODS:
            raise MOODS[name]

    def admit(self, view):
        self._feel("admit")
        return super().admit(view)

    def select(self, view, pool, size, without):
        self._feel("select")
        return super().select(view, pool, size, without)
"""


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


@pytest.fixture
def moods(tmp_path: Path, monkeypatch) -> Iterator[dict[str, BaseException]]:
    """The error that a third party's policy raises, by method."""
    install(tmp_path, "moody", CODE, {"rftd.policies": {"moody": "moody:Moody"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("moody").MOODS
    del sys.modules["moody"]


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    """Makes pauses short."""
    monkeypatch.setattr(limits, "PAUSE_BACKOFF_S", (0.2, 0.4))


def run_of(supervisor: Supervisor, experiment: UUID) -> Run:
    run = supervisor.runs.of(experiment)
    assert isinstance(run, Run)
    return run


async def begun(supervisor: Supervisor, *experiments: UUID, more: int = 6) -> None:
    """Returns once each of them has made so many more steps."""

    def step(id: UUID) -> int:
        run = supervisor.runs.of(id)
        return run.state.spine.furthest if run is not None else 0

    goals = {id: step(id) + more for id in experiments}
    await until(lambda: all(step(id) >= goal for id, goal in goals.items()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("select", ZeroDivisionError("my policy")),
        ("select", asyncio.CancelledError("not yours")),
        ("admit", SystemExit(3)),
    ],
)
async def test_a_policy_that_raises_pauses_its_run_until_it_does_not(
    desk: ForkDesk, moods: dict[str, BaseException], fake_world, ids, method: str, error: BaseException
) -> None:
    """The run pauses whether planner or dispatcher asked, whatever is raised; the other run of the daemon goes on."""
    async with desk.open(slots=2) as supervisor:
        bad, good = (
            await desk.hand_in(supervisor, "name=bad", *MOODY),
            await desk.hand_in(supervisor, "name=good", *LONG),
        )
        await begun(supervisor, bad, good)
        run, other = run_of(supervisor, bad), run_of(supervisor, good)
        moods[method] = error
        await until(lambda: run.state.spine.cause == ERROR)
        assert f"raised {type(error).__name__}" in run.state.spine.reason
        wait = (await supervisor.why(bad)).waits[0]
        assert (wait.state, wait.level) == (ERROR, Level.STUCK)
        assert "rftd resume" in wait.unblock
        await until(lambda: run.state.spine.pauses >= 3)
        await begun(supervisor, good)
        moods.clear()
        await begun(supervisor, bad)
        assert (supervisor.runs.of(bad), supervisor.runs.of(good)) == (run, other)
        assert run.state.spine.generation == 0, "its workers were left alone"
        for id in (bad, good):
            await supervisor.cancel(id, reason="", request_id=ids.new())
            assert (await desk.ended(id)).spine.status is Status.CANCELLED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_person_may_resume_at_once_or_pause_what_an_error_paused(
    desk: ForkDesk, moods: dict[str, BaseException], ids, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "PAUSE_BACKOFF_S", (3600.0,))
    async with desk.open() as supervisor:
        bad = await desk.hand_in(supervisor, "name=bad", *MOODY)
        await begun(supervisor, bad)
        run = run_of(supervisor, bad)
        moods["select"] = ZeroDivisionError("my policy")
        await until(lambda: run.state.spine.cause == ERROR)
        moods.clear()
        await supervisor.resume(bad, reason="mended", request_id=ids.new())
        await begun(supervisor, bad)
        moods["select"] = ZeroDivisionError("my policy")
        await until(lambda: run.state.spine.cause == ERROR)
        await supervisor.pause(bad, reason="I look at it", request_id=ids.new())
        await until(lambda: run.state.spine.status is Status.PAUSED and not run.state.spine.cause)
        await supervisor.cancel(bad, reason="", request_id=ids.new())
        await desk.ended(bad)


def broken(*_: object, **__: object) -> Any:
    """Raises what nobody foresaw."""
    raise RuntimeError("nobody foresaw it")


async def test_a_run_that_nobody_can_decide_on_is_taken_up_anew(desk: ForkDesk, monkeypatch, fake_world, ids) -> None:
    """Its controller cannot either: the pause is written for it all the same, and ends by itself."""
    async with desk.open(slots=2) as supervisor:
        bad, good = [await desk.hand_in(supervisor, f"name={name}", *LONG) for name in ("bad", "good")]
        await begun(supervisor, bad, good)
        run, other = run_of(supervisor, bad), run_of(supervisor, good)
        with monkeypatch.context() as patch:
            patch.setattr(run._inbox, "obey", broken)
            patch.setattr(Controller, "decide", only_for(other, Controller.decide))
            await until(lambda: bad in supervisor.runs.broken and supervisor.runs.broken[bad].errors >= 2)
            spine = (await desk.state(bad)).spine
            assert (spine.status, spine.cause) == (Status.PAUSED, ERROR)
            assert "RuntimeError: nobody foresaw it; fix: see the daemon's log" in spine.reason
            await until(lambda: bad not in supervisor.runs)
            [wait] = (await supervisor.why(bad)).waits
            assert (wait.state, wait.level) == (ERROR, Level.STUCK)
            assert "nobody foresaw it" in wait.waiting_for
        await begun(supervisor, bad, good)
        assert supervisor.runs.of(good) is other
        for id in (bad, good):
            await supervisor.cancel(id, reason="", request_id=ids.new())
            assert (await desk.ended(id)).spine.status is Status.CANCELLED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


def only_for(run: Run, decide: Any) -> Any:
    """A controller's decision that raises for every run but this."""

    def guarded(self: Controller, *arguments: Any, **named: Any) -> Any:
        return decide(self, *arguments, **named) if self._state is run.state else broken()

    return guarded


@pytest.mark.parametrize("part", ["_fleet.tend", "_snapshotter.look", "waits"])
async def test_what_helps_a_run_may_break(desk: ForkDesk, monkeypatch, ids, part: str) -> None:
    """Workers that cannot be started pause it; without snapshots and answers it goes on as if nothing was."""
    async with desk.open() as supervisor:
        bad = await desk.hand_in(supervisor, "name=bad", *LONG)
        await begun(supervisor, bad)
        run = run_of(supervisor, bad)
        holder, _, name = part.rpartition(".")
        with monkeypatch.context() as patch:
            patch.setattr(getattr(run, holder) if holder else run, name, broken)
            if name == "tend":
                await until(lambda: run.state.spine.cause == ERROR)
            else:
                await begun(supervisor, bad)
                assert run.state.spine.pauses == 0
        await begun(supervisor, bad)
        assert supervisor.runs.of(bad) is run
        await supervisor.cancel(bad, reason="", request_id=ids.new())
        await desk.ended(bad)


async def test_a_decision_that_no_record_holds_fails_its_experiment(desk: ForkDesk, monkeypatch) -> None:
    """Such as the plan of a batch that was submitted before batches were bounded: it would never be smaller."""
    monkeypatch.setattr(limits, "RECORD_SIZE_BYTES", 16_000)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(
            supervisor, "stages.0.buffer.train_batch_size=9000", "stages.0.buffer.total_steps=1"
        )
        spine = (await desk.ended(experiment)).spine
        assert (spine.status, spine.code) == (Status.FAILED, CodecError.code)
        assert "the decision of the planner: batch.planned of " in spine.reason
        after = await desk.submit(supervisor, "name=after")
        assert (await desk.state(after)).spine.status is Status.COMPLETED


async def test_a_turn_of_more_decisions_than_an_append_takes(desk: ForkDesk, monkeypatch, fake_world) -> None:
    monkeypatch.setattr(limits, "APPEND_RECORDS", 2)
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor)
        assert (await desk.state(experiment)).spine.status is Status.COMPLETED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
