"""A worker that refuses its work: while others do it, that is its own affair; else the run waits to be mended."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops import limits
from rftd.ops.errors import ConflictError, DataError, LogLossError, NotFoundError
from rftd.ops.logs import logger
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, partition_of
from rftd.workers.control.hold import REFUSED
from rftd.workers.hosts.membership import ProcessName
from rftd.workers.models import model_folder
from rftd.workers.process import run_explorer
from rftd.workers.rollout.explorer import Explorer
from rftd.workers.training.assembly import Assembly
from rftd.workers.training.execution import Execution

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("log", ["sqlite"], indirect=True)]
FREE = ("deterministic=false", "synchronizer={sync_style: fully_async, sync_interval: 1}", "policy={kind: hard_bound}")


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    """Makes pauses short."""
    monkeypatch.setattr(limits, "PAUSE_BACKOFF_S", (0.2, 0.4))


def other_rows(monkeypatch, hosts: Sequence[str]) -> None:
    """Hosts on which the dataset has one more line than was accepted."""
    original = Explorer.__init__

    def made(self: Explorer, member: Any, *more: Any, **named: Any) -> None:
        original(self, member, *more, **named)
        get = self._tasksets.get

        async def taskset(spec: Any, digest: str) -> Any:
            if member._process.host in hosts:
                raise DataError(f"taskset {spec.name!r} has another digest", where=spec.path, fix="restore the file")
            return await get(spec, digest)

        monkeypatch.setattr(self._tasksets, "get", taskset)

    monkeypatch.setattr(Explorer, "__init__", made)


def stranger(desk: ForkDesk, experiment: UUID, clock: Any, ids: Any) -> asyncio.Task[None]:
    """An explorer that somebody started elsewhere."""
    process = ProcessName(host="elsewhere", pid=4242, start_s=1.0)
    work = run_explorer(
        desk.log, experiment, 1, asyncio.Event(), clock=clock, ids=ids, logger=logger(), process=process
    )
    return asyncio.ensure_future(work)


def run_of(supervisor: Supervisor, experiment: UUID) -> Run:
    run = supervisor.runs.of(experiment)
    assert isinstance(run, Run)
    return run


@pytest.mark.slow
async def test_a_stranger_with_other_rows_fails_alone(desk: ForkDesk, monkeypatch, fake_world, clock, ids) -> None:
    other_rows(monkeypatch, ["elsewhere"])
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(
            # More than are made until the strangers are gone, however slow the machine is.
            supervisor,
            *FREE,
            "buffer.total_steps=100000",
            "trainer.engine_args={step_s: 0.02}",
        )
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.furthest >= 6)
        run = run_of(supervisor, experiment)
        for _ in range(3):
            with pytest.raises(DataError, match="another digest"):
                await asyncio.wait_for(stranger(desk, experiment, clock, ids), 120)
        reached = run.state.spine.furthest
        await until(lambda: run.state.spine.furthest >= reached + 6)
        await supervisor.cancel(experiment, reason="enough", request_id=ids.new())
        await until(lambda: run.state.spine.ended)
        assert run.state.spine.pauses == 0
        refused = [gone for gone in run.state.roster.gone.values() if gone.code == DataError.code]
        assert len(refused) == 3
        assert {gone.host for gone in refused} == {"elsewhere"}
        assert run.state.replay_buffer.books.failed_rollouts == 0, "what it held was given to others"
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_where_every_explorer_refuses_the_run_waits_until_it_is_mended(
    desk: ForkDesk, monkeypatch, fake_world, clock, ids
) -> None:
    import platform

    with monkeypatch.context() as patch:
        other_rows(patch, [platform.node()])
        async with desk.open() as supervisor:
            experiment = await desk.hand_in(supervisor, *FREE)
            await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.cause == REFUSED)
            spine = run_of(supervisor, experiment).state.spine
            # Both tasksets differ; which one an explorer meets first is the scheduler's choice.
            refused = "its explorer refuses: RFTD-DAT-001: taskset '(sums|held)' has another digest"
            assert re.search(refused, spine.reason)
            assert spine.reason.endswith("; fix: restore the file")
            await until(lambda: spine.pauses >= 3)
            patch.undo()
            monkeypatch.setattr(limits, "PAUSE_BACKOFF_S", (0.2, 0.4))
            assert (await desk.completed(experiment)).spine.status is Status.COMPLETED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.parametrize("role", ["explorer", "trainer"])
async def test_a_folder_that_the_users_of_workers_may_not_use_is_named_until_they_may(
    desk: ForkDesk, monkeypatch, fake_world, tmp_path: Path, role: str
) -> None:
    """As of a worker that another user starts: the daemon, which looked before, may use it."""
    model = tmp_path / "model"
    model.mkdir()
    may_use = model_folder._may

    def may(path: Path, mode: int) -> bool:
        own = path == model if role == "explorer" else path.name == "closed"
        closed = own and mode == (os.X_OK if role == "explorer" else os.W_OK)
        return may_use(path, mode) and not closed

    monkeypatch.setattr(model_folder, "_may", may)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *FREE, "name=closed", f"model.model_path={model}")
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.cause == REFUSED)
        reason = run_of(supervisor, experiment).state.spine.reason
        verb = "read" if role == "explorer" else "written"
        folder = model if role == "explorer" else tmp_path / "checkpoints"
        cannot = rf"RFTD-DAT-001: '{folder}.*' cannot be {verb} by this process \(uid {os.geteuid()}\): its mode is"
        assert re.search(cannot, reason), reason
        assert "; fix: " in reason
        monkeypatch.setattr(model_folder, "_may", may_use)
        assert (await desk.completed(experiment)).spine.status is Status.COMPLETED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.slow
async def test_a_run_whose_artifacts_are_gone_waits_until_they_are_back(
    desk: ForkDesk, monkeypatch, fake_world
) -> None:
    monkeypatch.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 8)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(
            supervisor, *FREE, "buffer.total_steps=40", "trainer.engine_args={step_s: 0.05}", "name=gone"
        )
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.furthest >= 8)
        run = run_of(supervisor, experiment)
        assert run.state.spine.spec is not None
        artifacts = Path(run.state.spine.spec.job_dir) / "artifacts"
        away = artifacts.with_name("elsewhere")
        artifacts.rename(away)
        await until(lambda: run.state.spine.cause == REFUSED)
        assert "its trainer refuses: RFTD-NOF-001: no artifact " in run.state.spine.reason
        assert "fix: restore the artifacts that belong to this log" in run.state.spine.reason
        await until(lambda: run.state.spine.pauses >= 2)
        shutil.copytree(away, artifacts, dirs_exist_ok=True)
        assert (await desk.completed(experiment)).spine.status is Status.COMPLETED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_an_experience_that_is_gone_for_good_is_given_up_and_its_batch_made_anew(
    desk: ForkDesk, monkeypatch, fake_world, ids
) -> None:
    """Whoever knows that its bytes will never be back says so: the batch is abandoned, its other items return."""
    monkeypatch.setattr(limits, "INLINE_ARRAY_SIZE_BYTES", 8)
    loaded, batch = Assembly._loaded, Execution.batch
    lost: list[BatchPlanned] = []

    def losing(self: Assembly, event: ExperienceProduced) -> ExperienceProduced:
        if lost and event.experience == lost[0].experiences[3].experience:
            raise NotFoundError(f"no artifact {event.tokens.artifact}", fix="restore it")
        return loaded(self, event)

    async def noting(self: Execution, plan: BatchPlanned) -> Any:
        if plan.step == 8 and not lost:
            lost.append(plan)
        return await batch(self, plan)

    monkeypatch.setattr(Assembly, "_loaded", losing)
    monkeypatch.setattr(Execution, "batch", noting)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *FREE, "buffer.total_steps=12")
        await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.cause == REFUSED)
        run = run_of(supervisor, experiment)
        trained = next(iter(run.state.replay_buffer.books.retired), None)
        item = lost[0].experiences[3]
        request = ids.new()
        with pytest.raises(ConflictError, match="it was trained, or is retired"):
            await supervisor.give_up(experiment, ids.new(), reason="", request_id=ids.new())
        for _ in range(2):
            await supervisor.give_up(experiment, item.experience, reason="the disk broke", request_id=request)
        spine = (await desk.completed(experiment)).spine
        assert spine.abandoned
        assert min(spine.abandoned) == 8
        assert trained != "given_up"
        assert run.state.replay_buffer.books.retired["given_up"] == 1
        assert not run.state.replay_buffer.given_up
        assert run.state.replay_buffer.counts()["balance"] == 0
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def test_a_worker_that_has_read_what_the_log_lacks_stops_the_run(
    desk: ForkDesk, monkeypatch, fake_world, clock, ids
) -> None:
    """The worker is alone with its log, as on Kafka, where nobody stands between that would hear what it remembers."""
    original = Explorer.run
    submitted: list[UUID] = []
    met: list[Partition] = []

    async def run(self: Explorer, stop: asyncio.Event) -> None:
        if not met:
            follower = self._follower
            await follower.catch_up()
            met.append(partition_of(topics.EXPERIMENTS, submitted[0]))
            follower.positions[met[0]] += 5
            follower._chains[met[0]] = b"x" * 16
            raise LogLossError("the log ends before what was read", where=str(met[0]))
        await original(self, stop)

    monkeypatch.setattr(Explorer, "run", run)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *FREE)
        submitted.append(experiment)
        await until(lambda: supervisor.stopped(experiment))
        error = supervisor.stopped(experiment)
        assert error is not None
        assert error.what.endswith("log.heads.explorer-0 of sums remembers it")
        await until(lambda: supervisor.runs.of(experiment) is None)
        executor: Any = desk.executor
        assert all(handle.exit_code() is not None for handle in executor.handles), "nobody is left who could append"
        await supervisor.accept_losses([str(experiment)], by="a person")
        assert (await desk.completed(experiment)).spine.status is Status.COMPLETED
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
