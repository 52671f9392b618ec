"""Several experiments at once on one daemon: apart from each other, in the order of their priorities."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.until import until

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.run.why.wait import Wait
from rftd.ops.errors import ConflictError
from rftd.ops.words import Level
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.wal import Blocked, Holder

pytestmark = pytest.mark.anyio

on_sqlite = pytest.mark.parametrize("log", ["sqlite"], indirect=True)
LONG = ("buffer.total_steps=2000",)


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def begun(supervisor: Supervisor, *experiments: UUID, step: int = 5) -> None:
    """Returns once each of them has made so many steps, all at the same time."""

    def far() -> bool:
        runs = [supervisor.runs.of(id) for id in experiments]
        return all(run is not None and run.state.spine.furthest >= step for run in runs)

    await until(far)


async def waits(supervisor: Supervisor, experiment: UUID) -> Wait:
    return (await supervisor.why(experiment)).waits[0]


async def test_a_reader_in_the_way_of_the_log_is_told(desk: ForkDesk, ids, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor)
        blocked = Blocked(300 << 20, 1.0, (Holder(4711, "sqlite3"),))
        monkeypatch.setattr(type(desk.log), "blocked", blocked, raising=False)
        monkeypatch.setattr(type(desk.log), "wal_size_bytes", 300 << 20, raising=False)
        told = (await supervisor.why(experiment)).waits[-1]
        assert (told.role, told.state, told.on_whom) == ("log", "wal_blocked", "process 4711 (sqlite3)")
        assert "300 MiB" in told.waiting_for
        monkeypatch.setattr(type(desk.log), "blocked", None)
        assert all(wait.state != "wal_blocked" for wait in (await supervisor.why(experiment)).waits)
        await supervisor.cancel(experiment, reason="", request_id=ids.new())


async def test_two_at_once_train_what_each_would_alone(desk: ForkDesk, fake_world) -> None:
    async with desk.open() as supervisor:
        alone = await desk.submit(supervisor, "name=alone")
    async with desk.open(slots=2) as supervisor:
        both = [await desk.hand_in(supervisor, f"name={name}") for name in ("left", "right")]
        await until(lambda: len(supervisor.runs) == 2)
        ends = [await desk.completed(each) for each in both]
    checksums = (await desk.completed(alone)).spine.checksums
    assert checksums
    assert all(state.spine.checksums == checksums for state in ends)
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
async def test_what_befalls_one_is_nothing_to_the_others(desk: ForkDesk, ids, fake_world) -> None:
    async with desk.open(slots=4) as supervisor:
        good = await desk.hand_in(supervisor, "name=good", "trainer.engine_args={step_s: 0.1}")
        bad = await desk.hand_in(
            supervisor, "name=bad", "trainer.engine_args={nan_at_step: 3}", "trainer.max_nonfinite_steps=1"
        )
        gone, paused = [await desk.hand_in(supervisor, f"name={name}", *LONG) for name in ("gone", "paused")]
        await begun(supervisor, gone, paused)
        await supervisor.pause(paused, reason="", request_id=ids.new())
        await supervisor.cancel(gone, reason="", request_id=ids.new())
        failed = await desk.ended(bad)
        assert (failed.spine.status, failed.spine.code) == (Status.FAILED, "RFTD-WRK-005")
        assert (await desk.ended(gone)).spine.status is Status.CANCELLED
        await until(lambda: not {bad, gone} & {run.state.experiment for run in supervisor.runs})
        await supervisor.remove(bad, reason="", archive=False, request_id=ids.new())
        with pytest.raises(ConflictError, match="paused; only ended experiments can be archived"):
            await supervisor.archive(paused, to="", request_id=ids.new())
        state = await desk.completed(good)
        assert state.spine.generation == 0
        assert not any(left.lost for left in state.roster.gone.values())
        await supervisor.resume(paused, reason="", request_id=ids.new())
        await begun(supervisor, paused, step=20)
        await supervisor.runs.drain()
        assert not supervisor.runs
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
async def test_priorities_say_who_is_next(desk: ForkDesk, ids, fake_world) -> None:
    async with desk.open() as supervisor:
        first = await desk.hand_in(supervisor, "name=first", *LONG)
        await begun(supervisor, first)
        usual = await desk.hand_in(supervisor, "name=usual")
        late = await desk.hand_in(supervisor, "name=late")
        urgent = await desk.hand_in(supervisor, "name=urgent", "priority=7")
        wait = await waits(supervisor, usual)
        assert (
            wait.waiting_for == "its turn, number 2 in the queue, behind first (running), urgent (queued, priority 7)"
        )
        assert (wait.on_whom, wait.level) == ("first", Level.WAITS)
        request = ids.new()
        for _ in range(2):
            await supervisor.prioritize(late, priority=8, reason="the talk is tomorrow", request_id=request)
        wait = await waits(supervisor, usual)
        assert "behind first (running), late (queued, priority 8), urgent (queued, priority 7)" in wait.waiting_for
        await supervisor.cancel(first, reason="", request_id=ids.new())
        ends = [await desk.completed(each) for each in (usual, late, urgent)]
        with pytest.raises(ConflictError, match="completed"):
            await supervisor.prioritize(late, priority=9, reason="", request_id=ids.new())
    assert [state.spine.priority for state in ends] == [0, 8, 7]
    began = {state.experiment: state.spine.stage_started_ns for state in ends}
    assert sorted(began, key=began.__getitem__) == [late, urgent, usual]
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
async def test_a_daemon_with_fewer_slots_takes_up_what_is_most_urgent(desk: ForkDesk, ids) -> None:
    async with desk.open(slots=2) as supervisor:
        left, right = [await desk.hand_in(supervisor, f"name={name}", *LONG) for name in ("left", "right")]
        await begun(supervisor, left, right)
        await supervisor.prioritize(right, priority=1, reason="", request_id=ids.new())
        await supervisor.runs.drain()
    async with desk.open(slots=1) as supervisor:
        await until(lambda: right in supervisor.runs)
        assert left not in supervisor.runs
        wait = await waits(supervisor, left)
        assert (wait.state, wait.waiting_for) == ("queued", "its turn, behind right (running)")
        await supervisor.cancel(left, reason="", request_id=ids.new())
        assert (await desk.ended(left)).spine.status is Status.CANCELLED
        await supervisor.cancel(right, reason="", request_id=ids.new())
        await desk.ended(right)


@on_sqlite
async def test_a_log_that_does_not_answer_one_run_is_asked_again(desk: ForkDesk, monkeypatch) -> None:
    from rftd.daemon.run.supervisor import runs
    from rftd.ops.errors import WaitTimeoutError

    monkeypatch.setattr(runs, "RETRY_PAUSE_S", 0.01)
    async with desk.open(slots=2) as supervisor:
        one, other = [await desk.hand_in(supervisor, f"name={name}", *LONG) for name in ("one", "other")]
        await begun(supervisor, one, other)
        before, beside = supervisor.runs.of(one), supervisor.runs.of(other)
        assert before is not None

        async def away(*_: object) -> None:
            raise WaitTimeoutError("the log did not deliver")

        monkeypatch.setattr(before._inbox, "obey", away)
        await until(lambda: supervisor.runs.of(one) not in (None, before))
        step = before.state.spine.furthest
        await begun(supervisor, one, step=step + 5)
        assert supervisor.runs.of(other) is beside
        await asyncio.gather(*(supervisor.cancel(id, reason="", request_id=id) for id in (one, other)))
        for each in (one, other):
            assert (await desk.ended(each)).spine.status is Status.CANCELLED
