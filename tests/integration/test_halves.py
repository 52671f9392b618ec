"""One experiment out of two submissions: `mode: explore` here, `mode: train` there, on one daemon and on two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.until import until

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.run.why.wait import Wait
from rftd.ops.errors import ConflictError, LogLossError
from rftd.ops.words import Level
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.workers.training.replay import ReplayOrder, replay
from rftd.workers.training.rerun import Compared

pytestmark = pytest.mark.anyio

on_sqlite = pytest.mark.parametrize("log", ["sqlite"], indirect=True)
EXPLORER, TRAINER = frozenset({"explorer"}), frozenset({"trainer"})


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


@pytest.fixture
def executors(log: EventLog, clock, ids, fake_world):
    """The executors of the daemon that explores, and of the one that trains."""
    return [Noted(fake_world.executor(log, clock, ids)) for _ in range(2)]


class Noted:
    """An executor, and the roles that it was asked for."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.adopt = inner.adopt
        self.lives = inner.lives
        self.clear = inner.clear
        self.host = inner.host
        self.roles: list[str] = []

    def start(self, order):
        self.roles.append(order.role)
        return self._inner.start(order)

    @property
    def handles(self):
        return self._inner.handles


@asynccontextmanager
async def two(desk: ForkDesk, executors) -> AsyncIterator[tuple[Supervisor, Supervisor]]:
    """The daemon that explores, and the one that trains."""
    async with (
        desk.open(roles=EXPLORER, executor=executors[0]) as explores,
        desk.open(roles=TRAINER, executor=executors[1]) as trains,
    ):
        yield explores, trains


async def wait_of(supervisor: Supervisor, experiment: UUID, role: str) -> Wait:
    return next(wait for wait in (await supervisor.why(experiment)).waits if wait.role == role)


@on_sqlite
@pytest.mark.parametrize(
    ("first", "second", "missing"), [("explore", "train", "trainer"), ("train", "explore", "explorer")]
)
async def test_the_halves_join_on_one_daemon(desk: ForkDesk, fake_world, first: str, second: str, missing: str) -> None:
    executor = Noted(desk.executor)
    async with desk.open(executor=executor) as supervisor:
        experiment = await desk.hand_in(supervisor, f"mode={first}", "synchronizer.sync_timeout=70")
        run = await running(supervisor, experiment)
        await until(lambda: run.state.roster.live)
        wait = await wait_of(supervisor, experiment, missing)
        assert (wait.state, wait.level, wait.on_whom) == ("half_missing", Level.STUCK, "you")
        assert wait.unblock == f"submit the same file with mode: {second}, or rftd worker {missing}"
        assert set(executor.roles) == {"trainer", "explorer"} - {missing}
        assert run.state.spine.furthest <= 4
        if first == "train":  # a trainer that began settles the trainer's fields for whoever takes halves in
            await until(lambda: supervisor._registry.entries[experiment].spine.generation == 0)
        other = f"mode={second}"
        for overrides, said in (
            ((f"mode={first}",), f"has its {first} half already"),
            ((other, "buffer.batch_size=5"), r"stages\[0\]\.batch_size: 4, and here it is 5:"),
            ((other, "seed=1"), "seed: 42, and here it is 1:"),
            ((other, "synchronizer.sync_timeout=5"), r"synchronizer\.sync_timeout: 70\.0, and here it is 5\.0:"),
            ((), "has not ended"),
        ):
            with pytest.raises(ConflictError, match=said):
                await desk.hand_in(supervisor, *overrides)
        again = [await desk.hand_in(supervisor, f"mode={second}", "priority=3", "labels={team: b}")]
        assert again == [experiment]
        state = await desk.completed(experiment)
        assert state.spine.halves == {"explore", "train"}
        assert state.spine.priority == 0
        with pytest.raises(ConflictError, match="holds another experiment"):
            await desk.hand_in(supervisor, f"mode={first}")
    assert set(executor.roles) == {"trainer", "explorer"}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
@pytest.mark.parametrize("first", ["explore", "train"])
async def test_halves_written_apart_fix_what_each_uses(desk: ForkDesk, fake_world, clock, first: str) -> None:
    """The explorers' file says nothing of the training, and the trainer's nothing of tasks and explorers."""
    explore = (
        *("mode=explore", "stages=[]", "explorer.rollout_model.engine_num=2", "trainer={trainer_type: fake}"),
        "synchronizer={sync_offset: 0}",
    )
    train = (
        *(
            "mode=train",
            "stages=[]",
            "buffer={total_steps: 6}",
            "synchronizer={sync_method: checkpoint, sync_style: fixed}",
        ),
        *("explorer={rollout_model: {engine_type: fake}}", "algorithm.optimizer.lr=0.25", "trainer.save_interval=3"),
    )
    order = (explore, train) if first == "explore" else (train, explore)
    executor = Noted(desk.executor)
    async with desk.open(executor=executor) as supervisor:
        experiment = await desk.hand_in(supervisor, *order[0])
        if first == "train":
            wait = await wait_of(supervisor, experiment, "experiment")
            assert (wait.state, wait.on_whom) == ("half_missing", "you")
            assert not executor.roles, "no worker begins before somebody names the tasks"
        assert experiment == await desk.hand_in(supervisor, *order[1])
        state = await desk.completed(experiment)
        await until(lambda: not supervisor.runs)
        (stage,) = state.spine.spec.stages
        assert (stage.batch_size, stage.rollout.explorers, stage.taskset.name) == (4, 2, "sums")
        assert (stage.algorithm.optimizer.lr, stage.trainer.save_interval) == (0.25, 3)
        # Neither file says how many experiences a step trains, and each a part of how weights travel.
        assert (stage.train_batch_size, stage.synchronizer.sync_style, stage.synchronizer.sync_offset) == (
            16,
            "fixed",
            0,
        )
        assert {step for step, _ in state.checkpoints} >= {3, 6}
        assert sorted(executor.roles) == ["explorer", "explorer", "trainer"]
        fork = await desk.fork(supervisor, experiment, 3)
        child = await desk.completed(fork.experiment)
        assert child.spine.spec.stages[0].rollout == stage.rollout
        assert child.spine.spec.stages[0].algorithm == stage.algorithm
    await desk.left()
    steps: list[Compared] = []
    outcome = await replay(
        desk.log, experiment, ReplayOrder(), clock=clock, on_begin=lambda _: None, on_step=steps.append
    )
    assert ([each.step for each in steps], outcome.different) == ([1, 2, 3, 4, 5, 6], ())
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


async def running(supervisor: Supervisor, experiment: UUID):
    await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.status is Status.RUNNING)
    found = supervisor.runs.of(experiment)
    assert found is not None
    return found


async def test_the_halves_join_on_two_daemons(desk: ForkDesk, fake_world, executors, ids) -> None:
    async with two(desk, executors) as (explores, trains):
        experiment = await desk.hand_in(explores, "mode=explore")
        assert experiment == await desk.hand_in(trains, "mode=train")
        hosted = await running(explores, experiment)
        await until(lambda: [wait.state for wait in hosted.waits() if wait.role == "experiment"] == ["running"])
        for command in (explores.pause, explores.cancel):
            with pytest.raises(ConflictError, match="another one on this log decides"):
                await command(experiment, reason="", request_id=ids.new())
        state = await desk.completed(experiment)
        await until(lambda: not explores.runs and not trains.runs)
    assert set(executors[0].roles) == {"explorer"}
    assert set(executors[1].roles) == {"trainer"}
    assert state.spine.furthest == 10
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
async def test_two_daemons_that_take_a_half_in_at_once_mean_one_experiment(
    desk: ForkDesk, fake_world, executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees what the other is about to write, and yet both write about the same experiment."""
    async with two(desk, executors) as (explores, trains):
        met = asyncio.Barrier(2)
        for each in (explores, trains):

            async def housed(spec, *, tidy, inner=each._submissions._intake._with_own_folder):
                await met.wait()
                return await inner(spec, tidy=tidy)

            monkeypatch.setattr(each._submissions._intake, "_with_own_folder", housed)
        one, other = await asyncio.gather(desk.hand_in(explores, "mode=explore"), desk.hand_in(trains, "mode=train"))
        assert one == other
        state = await desk.completed(one)
    assert state.spine.halves == {"explore", "train"}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@on_sqlite
async def test_a_daemon_that_only_explores_helps_whoever_trains(desk: ForkDesk, executors) -> None:
    async with desk.open(roles=EXPLORER, executor=executors[0]) as explores:
        experiment = await desk.hand_in(explores)
        wait = await wait_of(explores, experiment, "experiment")
        assert (wait.state, wait.level) == ("decided_elsewhere", Level.WAITS)
        assert not explores.runs
        async with desk.open(roles=TRAINER, executor=executors[1]):
            await desk.completed(experiment)
    assert set(executors[0].roles) == {"explorer"}
    assert set(executors[1].roles) == {"trainer"}


@on_sqlite
async def test_a_daemon_that_only_explores_and_meets_a_loss_leaves_no_worker_behind(
    desk: ForkDesk, executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = Follower.pump
    lost: list[UUID] = []

    async def pumped(self: Follower, wait_s: float) -> int:
        if lost and self._fold is explores.runs.of(lost[0]).state:
            self.positions[spine] += 1000
            self._chains[spine] = b"x" * 16
            raise LogLossError("the log ends before what was read")
        return await pump(self, wait_s)

    monkeypatch.setattr(Follower, "pump", pumped)
    async with two(desk, executors) as (explores, trains):
        experiment = await desk.hand_in(trains, "buffer.total_steps=2000")
        spine = partition_of(topics.EXPERIMENTS, experiment)
        await until(lambda: "explorer" in executors[0].roles and explores.runs.of(experiment))
        lost.append(experiment)
        await until(lambda: explores.stopped(experiment))
        error = explores.stopped(experiment)
        assert error is not None
        assert "the daemon that hosted its workers remembers it" in error.what
        await until(lambda: explores.runs.of(experiment) is None)
        assert all(handle.exit_code() is not None for handle in executors[0].handles)
        lost.clear()


@pytest.mark.parametrize("extra", [(), ("buffer.total_steps=null", "buffer.total_epochs=2")])
@on_sqlite
async def test_exploring_alone_collects_every_task_and_ends(desk: ForkDesk, fake_world, extra: tuple[str, ...]) -> None:
    collect = ("mode=explore", "explorer.collect_only=true", "stages=[]", "deterministic=false", *extra)
    async with desk.open() as supervisor:
        experiment = await desk.submit(supervisor, *collect)
        await until(lambda: not supervisor.runs)
    state = await desk.completed(experiment)
    groups = 80 if extra else 24
    produced, closed = [await events(desk.log, kind) for kind in (ExperienceProduced, GroupClosed)]
    assert sorted(event.sequence for event in closed) == list(range(groups))
    assert len(produced) == 4 * groups
    assert state.spine.furthest == 0
    assert not state.spine.planned
    assert not state.checkpoints
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
    assert report.experiments[0].retired == {"collected": 4 * groups}
    assert report.experiments[0].waiting == 0


async def events(log: EventLog, kind):
    """Every event of a kind, partition by partition."""
    found = []
    for partition, mark in (await log.heads()).items():
        offset = 0
        while offset < mark.next_offset and (records := await log.read(partition, offset)):
            found += [event for record in records if isinstance(event := decode(record).event, kind)]
            offset = records[-1].offset + 1
    return found


@on_sqlite
async def test_weights_in_memory_become_files_if_another_daemon_explores(desk: ForkDesk, executors) -> None:
    async with two(desk, executors) as (_, trains):
        experiment = await desk.hand_in(trains, "synchronizer.sync_method=memory")
        run = await running(trains, experiment)
        await desk.ended(experiment)
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    assert {event.method for event in run.state.weights.published.values()} == {"checkpoint"}
    assert any("travel as checkpoint files" in text for text in run.state.spine.spec.warnings)
