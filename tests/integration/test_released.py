"""A pause that only a person ends gives back workers and slot after a while; a resume waits for its turn again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import STEPS, ForkDesk
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.serve.external_worker import ExternalWorker
from rftd.ops.errors import ConflictError
from rftd.ops.ids import Ids
from rftd.ops.logs import logger
from rftd.ops.words import Level
from rftd.streams.events.experiment import ExperimentReleased, ExperimentResumed, ExperimentStarted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]

SLOW = ("buffer.total_steps=60", "trainer.engine_args={step_s: 0.05}")
SOON_S = 0.3
NEVER_S = 1e6


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock: Any, ids: Ids, fake_world: Any) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


def living(desk: ForkDesk) -> int:
    """The number of workers that have not ended."""
    return sum(handle.exit_code() is None for handle in desk.executor.handles)


async def begun(supervisor: Supervisor, experiment: UUID) -> Run:
    """The run of an experiment, once it has made a few steps of its second stage."""
    await until(lambda: isinstance(run := supervisor.runs.of(experiment), Run) and run.state.spine.furthest >= 6)
    run = supervisor.runs.of(experiment)
    assert isinstance(run, Run)
    return run


async def released(desk: ForkDesk, supervisor: Supervisor, ids: Ids, *overrides: str) -> UUID:
    """An experiment that was paused, and whose workers have left."""
    experiment = await desk.hand_in(supervisor, *SLOW, *overrides)
    await begun(supervisor, experiment)
    await supervisor.pause(experiment, reason="the machine is needed", request_id=ids.new())
    await until(lambda: experiment not in supervisor.runs)
    return experiment


async def lives(desk: ForkDesk, experiment: UUID) -> list[type]:
    """The kinds of the events by which it was released and taken up."""
    records = await desk.log.read(partition_of(topics.EXPERIMENTS, experiment), 0, max_records=10_000)
    own = [decoded.event for decoded in map(decode, records) if decoded.head.experiment == experiment]
    kinds = (ExperimentReleased, ExperimentResumed, ExperimentStarted)
    return [type(event) for event in own if isinstance(event, kinds)]


async def test_workers_leave_and_the_slot_is_free(desk: ForkDesk, ids: Ids, fake_world: Any) -> None:
    async with desk.open(release_after_s=SOON_S) as supervisor:
        first = await released(desk, supervisor, ids, "name=first")
        assert living(desk) == 0
        state = await desk.state(first)
        assert (state.spine.status, state.spine.released) == (Status.PAUSED, True)
        assert not state.roster.live
        [wait] = (await supervisor.why(first)).waits
        assert (wait.role, wait.state, wait.on_whom, wait.level) == ("experiment", "released", "you", Level.STUCK)
        assert wait.waiting_for == (
            "a resume; it was paused by a command: the machine is needed; "
            "released: its workers and its slot are released"
        )
        second = await desk.submit(supervisor, "name=second")
        assert (await desk.state(second)).spine.status is Status.COMPLETED
        await supervisor.resume(first, reason="", request_id=ids.new())
        assert (await desk.completed(first)).spine.furthest == STEPS - 6 + 60
    assert await lives(desk, first) == [ExperimentStarted, ExperimentReleased, ExperimentResumed, ExperimentStarted]
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_resume_waits_for_its_turn_by_priority(desk: ForkDesk, ids: Ids, fake_world: Any) -> None:
    async with desk.open(release_after_s=SOON_S) as supervisor:
        urgent = await released(desk, supervisor, ids, "name=urgent", "priority=5")
        holder = await desk.hand_in(supervisor, *SLOW, "name=holder")
        later = await desk.hand_in(supervisor, "name=later", "priority=1")
        await begun(supervisor, holder)
        await supervisor.resume(urgent, reason="", request_id=ids.new())
        wait = (await supervisor.why(urgent)).waits[0]
        assert (wait.state, wait.waiting_for) == ("queued", "its turn, behind holder (running)")
        assert urgent not in supervisor.runs
        with pytest.raises(ConflictError, match="queued"):
            await supervisor.resume(urgent, reason="", request_id=ids.new())
        await supervisor.cancel(holder, reason="", request_id=ids.new())
        await begun(supervisor, urgent)
        assert later not in supervisor.runs
        await desk.completed(urgent)
        await desk.completed(later)
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_resume_while_the_workers_leave_is_answered(desk: ForkDesk, ids: Ids) -> None:
    async with desk.open(release_after_s=SOON_S) as supervisor:
        experiment = await desk.hand_in(supervisor, *SLOW)
        run = await begun(supervisor, experiment)
        await supervisor.pause(experiment, reason="", request_id=ids.new())
        await until(lambda: run.releasing)
        await supervisor.resume(experiment, reason="", request_id=ids.new())
        await desk.completed(experiment)
    assert await lives(desk, experiment) == [
        ExperimentStarted,
        ExperimentReleased,
        ExperimentResumed,
        ExperimentStarted,
    ]


class SlowToAppend:
    """The log as a second daemon sees it, which appends once `released` is over."""

    def __init__(self, log: EventLog, released: Awaitable[None]) -> None:
        self._log = log
        self._released = released

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        await self._released
        return await self._log.append(drafts)


async def test_a_resume_that_meets_the_release_of_another_daemon_is_queued(
    desk: ForkDesk, ids: Ids, fake_world: Any
) -> None:
    async with desk.open(release_after_s=SOON_S) as supervisor:
        experiment = await desk.hand_in(supervisor, *SLOW, "name=first")
        await begun(supervisor, experiment)
        await supervisor.pause(experiment, reason="", request_id=ids.new())
        released = until(lambda: experiment not in supervisor.runs)
        other = desk.idle(SlowToAppend(desk.log, released))
        await other.resume(experiment, reason="", request_id=ids.new())
        await desk.completed(experiment)
    kinds = [ExperimentStarted, ExperimentReleased, ExperimentResumed, ExperimentStarted]
    assert await lives(desk, experiment) == kinds
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_resume_at_another_daemon_goes_on_at_once_where_the_workers_are(
    desk: ForkDesk, ids: Ids, fake_world: Any
) -> None:
    async with desk.open(release_after_s=NEVER_S) as supervisor:
        experiment = await desk.hand_in(supervisor, *SLOW, "name=first")
        run = await begun(supervisor, experiment)
        started = len(desk.executor.handles)
        await supervisor.pause(experiment, reason="", request_id=ids.new())
        await desk.idle(desk.log).resume(experiment, reason="", request_id=ids.new())
        await desk.completed(experiment)
        assert run.state.spine.ended, "the run that had it went on"
        assert len(desk.executor.handles) == started
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_new_daemon_starts_nothing_for_what_is_paused(desk: ForkDesk, ids: Ids) -> None:
    async with desk.open(release_after_s=NEVER_S) as supervisor:
        experiment = await desk.hand_in(supervisor, *SLOW)
        await begun(supervisor, experiment)
        await supervisor.pause(experiment, reason="", request_id=ids.new())
        await supervisor.runs.drain()
    started = len(desk.executor.handles)
    async with desk.open(release_after_s=NEVER_S) as supervisor:
        await until(lambda: isinstance(supervisor.runs.of(experiment), Run))
        for priority in (1, 2):  # the second is obeyed after a whole turn of the run
            await supervisor.prioritize(experiment, priority=priority, reason="", request_id=ids.new())
        assert len(desk.executor.handles) == started
        await supervisor.resume(experiment, reason="", request_id=ids.new())
        await until(lambda: len(desk.executor.handles) > started)
        await supervisor.cancel(experiment, reason="", request_id=ids.new())
        await desk.ended(experiment)


async def test_what_is_released_stays_so_and_keeps_its_files(desk: ForkDesk, ids: Ids) -> None:
    async with desk.open(release_after_s=SOON_S) as supervisor:
        experiment = await released(desk, supervisor, ids, "name=kept")
    started = len(desk.executor.handles)
    files = sorted(path for path in desk.folder.rglob("*") if path.is_file() and "checkpoints" in path.parts)
    async with desk.open(release_after_s=SOON_S) as supervisor:
        assert (await supervisor.why(experiment)).waits[0].state == "released"
        await supervisor.collect(every=True)
        assert all(path.exists() for path in files)
        with pytest.raises(ConflictError, match="kept is paused; only ended experiments can be archived"):
            await supervisor.archive(experiment, to="", request_id=ids.new())
        with pytest.raises(ConflictError, match="kept is paused; only ended experiments can be removed"):
            await supervisor.remove(experiment, reason="", archive=False, request_id=ids.new())
        other = await desk.submit(supervisor, "name=other")
        assert (await desk.state(other)).spine.status is Status.COMPLETED
        assert experiment not in supervisor.runs
        assert len(desk.executor.handles) > started, "of the other one"
        await supervisor.cancel(experiment, reason="", request_id=ids.new())
        assert (await desk.ended(experiment)).spine.status is Status.CANCELLED
        await supervisor.remove(experiment, reason="", archive=False, request_id=ids.new())


async def test_workers_that_nobody_started_here_leave_and_come_back(
    desk: ForkDesk, clock: Any, ids: Ids, fake_world: Any
) -> None:
    stop = asyncio.Event()
    same: dict[str, Any] = {"clock": clock, "ids": ids, "logger": logger()}
    workers = [ExternalWorker(desk.log, role, slot, **same) for role, slot in (("trainer", -1), ("explorer", 0))]
    async with desk.open(roles=frozenset(), release_after_s=SOON_S) as supervisor, asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker.run(stop))
        experiment = await released(desk, supervisor, ids, "name=external")
        async with asyncio.timeout(60):
            while (await desk.state(experiment)).roster.live:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.1)
        await supervisor.resume(experiment, reason="", request_id=ids.new())
        await desk.completed(experiment)
        stop.set()
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_explorers_of_another_daemon_leave_too(desk: ForkDesk, ids: Ids, fake_world: Any) -> None:
    trains = desk.open(roles=frozenset({"trainer"}), release_after_s=SOON_S)
    explores = desk.open(roles=frozenset({"explorer"}))
    async with trains as supervisor, explores as host:
        experiment = await released(desk, supervisor, ids, "name=hosted")
        await until(lambda: experiment not in host.runs and not living(desk))
        await supervisor.resume(experiment, reason="", request_id=ids.new())
        await desk.completed(experiment)
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
