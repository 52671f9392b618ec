"""A whole rftd inside one process: real log, real roles, fake engines; workers are tasks instead of processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.daemon.run.supervisor.preflight import preflight
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import Clock, SystemClock
from rftd.ops.ids import Ids, SystemIds, derive
from rftd.ops.logs import logger
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events import experiment as life
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.run_state import RunState
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.kafka.topics import ensure_topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import as_refs
from rftd.streams.spec.sections import Format, Synchronizer
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    PolicySpec,
    RolloutSpec,
    SamplingSpec,
    StageSpec,
    TasksetSpec,
    TrainerSpec,
)
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import VerifyReport
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.process import run_explorer, run_trainer


class TaskHandle:
    """A worker that is a task of this loop."""

    pid = -1
    waits = None
    reason = ""

    def __init__(self, task: asyncio.Task[None], stop: asyncio.Event) -> None:
        self.task = task
        self._stop = stop

    def exit_code(self) -> int | None:
        if not self.task.done():
            return None
        return 0 if not self.task.cancelled() and self.task.exception() is None else 1

    def terminate(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self.task.cancel()


class TaskExecutor:
    """Runs workers as tasks; `pid` is this process's, so losing one is seen by its handle alone."""

    def __init__(self, log: EventLog, clock: Clock, ids: Ids, tracer: Tracer | None = None) -> None:
        self.log, self.clock, self.ids = log, clock, ids
        self.tracer = tracer
        self.handles: list[TaskHandle] = []

    def start(self, order: WorkerOrder) -> Handle:
        stop = asyncio.Event()
        parts = {
            "clock": self.clock,
            "ids": self.ids,
            "logger": logger(role=order.role),
            "worker": order.worker,
            "tracer": self.tracer,
        }
        if order.role == "trainer":
            work = run_trainer(self.log, order.experiment, stop, **parts)
        else:
            work = run_explorer(self.log, order.experiment, order.slot, stop, **parts)
        handle = TaskHandle(asyncio.ensure_future(work), stop)
        import os

        handle.pid = os.getpid()
        self.handles.append(handle)
        return handle

    def host(self) -> Host:
        return ANY_HOST

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def lives(self, started: WorkerStarted) -> bool | None:
        return None

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


def sums(path: Path, rows: int) -> Path:
    """A jsonl taskset of sums."""
    path.write_text(
        "".join(json.dumps({"question": f"{a}+{a % 10}=", "answer": str(a + a % 10)}) + "\n" for a in range(rows))
    )
    return path


def fake_spec(folder: Path, **changes: Any) -> ExperimentSpec:
    """An SFT stage of 3 steps and a GRPO stage of 5, on fake engines; `changes` replace fields of the GRPO stage."""
    form = Format(prompt_type="raw", prompt_key="question", response_key="answer")
    taskset = TasksetSpec(
        name="sums",
        path=str(sums(folder / "train.jsonl", 40)),
        format=form,
        workflow="simple_workflow",
        reward="exact_match_reward",
        sampling=SamplingSpec(max_tokens=8),
    )
    held_out = msgspec.structs.replace(
        taskset,
        name="held_out",
        path=str(sums(folder / "eval.jsonl", 12)),
        sampling=SamplingSpec(max_tokens=8, temperature=0.0),
    )
    model = ModelSpec(path="fake", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32)
    engines = {
        "rollout": RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0),
        "trainer": TrainerSpec(engine="fake", save_interval=2),
        "model": model,
    }
    job = folder / "job"
    sft = StageSpec(
        name="warmup",
        kind="train",
        folder=str(job / "warmup"),
        total_steps=3,
        batch_size=4,
        train_batch_size=4,
        algorithm=AlgorithmSpec(kind="sft"),
        dataset=taskset,
        **engines,
    )
    grpo = StageSpec(
        name="rft",
        kind="both",
        folder=str(job / "rft"),
        total_steps=5,
        batch_size=4,
        train_batch_size=16,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=4, advantage="grpo", policy_loss="ppo"),
        taskset=taskset,
        evals=(held_out,),
        policy=PolicySpec(max_staleness_versions=2, max_inflight_batches=3),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        **engines,
    )
    grpo = msgspec.structs.replace(grpo, **changes)
    spec = ExperimentSpec(project="test", name="fake", job_dir=str(job), stages=(sft, grpo), config={})
    return preflight(spec)


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def ids(clock: SystemClock) -> SystemIds:
    return SystemIds(clock)


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.servers)])
async def log(
    request: pytest.FixtureRequest, tmp_path: Path, clock: SystemClock, ids: SystemIds
) -> AsyncIterator[EventLog]:
    """The log of a run: a file, or a real Kafka's."""
    if request.param == "sqlite":
        opened: EventLog = await SqliteLog.open(tmp_path / "log")
    else:
        bootstrap = request.getfixturevalue("kafka_broker").bootstrap
        settings = parse_kafka(f"kafka://{bootstrap}/?prefix={request.getfixturevalue('kafka_prefix')}")
        await ensure_topics(settings)
        opened = await KafkaLog.open(settings, clock=clock, ids=ids)
    yield opened
    await opened.close()


async def verified(log: EventLog) -> VerifyReport:
    """The offline checker's report on any log."""
    return await verify(log, chained=not isinstance(log, KafkaLog))


class FakeWorld:
    """The parts from which the tests of this folder build their runs."""

    spec = staticmethod(fake_spec)
    executor = TaskExecutor
    verified = staticmethod(verified)

    @staticmethod
    async def submitted(log: EventLog, spec: ExperimentSpec, clock: Clock, ids: Ids) -> UUID:
        """An experiment that was just taken in."""
        writer = Writer(source="test", clock=clock, ids=ids)
        experiment = derive(ids.new(), "experiment")
        await log.append([writer.draft(life.ExperimentSubmitted(spec=spec), experiment=experiment)])
        heads = as_refs(await log.heads())
        await log.append([writer.draft(life.ExperimentAccepted(start=heads), experiment=experiment)])
        return experiment

    @staticmethod
    async def run(
        log: EventLog,
        spec: ExperimentSpec,
        clock: Clock,
        ids: Ids,
        executor: TaskExecutor | None = None,
        tracer: Tracer | None = None,
    ) -> Run:
        """The run of an experiment that was just taken in; it is not driven yet."""
        experiment = await FakeWorld.submitted(log, spec, clock, ids)
        executor = executor or TaskExecutor(log, clock, ids, tracer)
        return Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger(), tracer=tracer)

    @staticmethod
    async def completed(
        log: EventLog, spec: ExperimentSpec, clock: Clock, ids: Ids, tracer: Tracer | None = None
    ) -> RunState:
        """The state after the experiment was driven to its end."""
        run = await FakeWorld.run(log, spec, clock, ids, tracer=tracer)
        async with asyncio.timeout(60):
            await run.drive()
        return run.state

    @staticmethod
    def fixed(interval: int, offset: int) -> dict[str, Any]:
        """The GRPO stage's fields for `sync_style: fixed`."""
        return {
            "synchronizer": Synchronizer(
                sync_method="checkpoint", sync_style="fixed", sync_interval=interval, sync_offset=offset
            ),
            "policy": PolicySpec(max_staleness_versions=offset + interval - 1, max_inflight_batches=interval + offset),
        }


@pytest.fixture
def fake_world() -> FakeWorld:
    return FakeWorld()
