"""The workers of `experience_path`: an explorer that answers at once, and two that take batches as trainers do."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from rftd.daemon.serve.log_source import connect_log
from rftd.ops.clock import SystemClock
from rftd.ops.cycles import tune_collector
from rftd.ops.ids import SystemIds, derive
from rftd.ops.logs import logger
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.events.registry import Event
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.backend import log_url
from rftd.streams.log.decision import slot_partition
from rftd.streams.log.envelope import Draft
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import RoleLease
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.hosts.membership import Membership
from rftd.workers.learning.engine import StepResult, TrainBatch
from rftd.workers.rollout.leased import experience_ids, rollout_ids
from rftd.workers.rollout.view import ExplorerView
from rftd.workers.training.assembly import Assembly
from rftd.workers.training.trainer import Trainer
from rftd.workers.weights.channel import BYTES
from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights

PROMPT_TOKENS, RESPONSE_TOKENS = 24, 1000
VOCABULARY = 150_000
CAPACITY_ROLLOUTS = 4096
APPENDS_IN_FLIGHT = 128
PUBLISHED_STEPS = 8
ORDERED = "BENCH_WORKER"


class Responses:
    """Random ids and log-probabilities, drawn beforehand: generating is not what is measured."""

    def __init__(self, seed: int, count: int = 256) -> None:
        random = np.random.default_rng(seed)
        tokens = random.integers(0, VOCABULARY, (count, PROMPT_TOKENS + RESPONSE_TOKENS), dtype=np.uint32)
        logprobs = -np.abs(random.normal(size=(count, RESPONSE_TOKENS))).astype(np.float32)
        self._tokens = [Array.of(row, "u4") for row in tokens]
        self._logprobs = [Array.of(row, "f4") for row in logprobs]
        self._mask = Array.of(np.ones(RESPONSE_TOKENS), "u1")
        self._turn = 0

    def event(self, *, group: UUID, rollout: int, stage: int, lease: UUID, version: int) -> ExperienceProduced:
        """The next one, with the fields of a real rollout."""
        self._turn = turn = (self._turn + 1) % len(self._tokens)
        reward = float(turn % 2)
        return ExperienceProduced(
            experience=experience_ids(rollout_ids(group, [rollout]))[0],
            group=group,
            rollout=rollout,
            stage=stage,
            lease=lease,
            tokens=self._tokens[turn],
            prompt_tokens=PROMPT_TOKENS,
            loss_mask=self._mask,
            logprobs=self._logprobs[turn],
            spans=(Span(version, 0, 0, RESPONSE_TOKENS),),
            reward=reward,
            metrics={"accuracy": reward, "response_length": float(RESPONSE_TOKENS)},
            duration_s=1.0,
        )


def ordered(worker: UUID) -> dict[str, str]:
    """The environment of a worker that was ordered."""
    return {**os.environ, ORDERED: worker.hex}


def ordered_id() -> UUID | None:
    """The id that this worker's order carries; None: nobody ordered it."""
    return UUID(os.environ[ORDERED]) if ORDERED in os.environ else None


async def explore(
    url: str,
    experiment: UUID,
    groups_per_s: float = 0.0,
    *,
    burst_s: float = 0.0,
    capacity_rollouts: int = CAPACITY_ROLLOUTS,
) -> None:
    """Answers each lease of slot 0 with a group, several appends in flight, until it is killed.

    With `groups_per_s` at that steady pace, the groups of each `burst_s` together; else as fast as it can.
    """
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    log = await connect_log(log_url(url), clock=clock, ids=ids)
    member = Membership(log, experiment=experiment, role="explorer", slot=0, clock=clock, ids=ids, id=ordered_id())
    view = ExplorerView(member.id)
    start = (await beginning_of(log, experiment)).positions
    positions = {partition_of(topics.EXPERIMENTS, experiment): 0, partition_of(topics.WEIGHTS, experiment): 0}
    positions = {partition: start.get(partition, 0) for partition in positions} | {slot_partition(0): 0}
    follower = Follower(log, view, experiment=experiment, positions=positions, clock=clock)
    await follower.catch_up()
    await member.join(capacity_rollouts)
    responses = Responses(0)
    in_flight = asyncio.Semaphore(APPENDS_IN_FLIGHT)

    def draft_of(lease: TaskLeased, rollout: int) -> Draft:
        version = max(0, view.spine.version)
        event = responses.event(
            group=lease.group, rollout=rollout, stage=lease.stage, lease=lease.lease, version=version
        )
        return member.writer.draft(
            event,
            experiment=experiment,
            key=lease.group,
            id=event.experience,
            causation=lease.lease,
            correlation=lease.group,
        )

    async def answer(lease: TaskLeased) -> None:
        async with in_flight:
            await log.append([draft_of(lease, rollout) for rollout in lease.rollouts])

    due_s = clock.monotonic_s()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member.beat(lambda: None))
        while True:
            await follower.pump(wait_s=0.5)
            while view.leased:
                lease = view.leased.popleft()
                if isinstance(lease, TaskLeased):
                    if groups_per_s:
                        due_s = max(due_s + 1 / groups_per_s, clock.monotonic_s() - 0.1)
                        if (ahead_s := due_s - clock.monotonic_s()) > burst_s:
                            await clock.sleep(ahead_s)
                    tasks.create_task(answer(lease))


class NoModel:
    """A trainer engine that looks at every token and learns nothing."""

    deterministic = True
    kind = BYTES
    exact = True

    def __init__(self) -> None:
        self._step = 0

    def environment(self) -> dict[str, str]:
        return {}

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        return

    def begin_stage(self, stage: StageSpec) -> None:
        return

    def train(self, batch: TrainBatch) -> StepResult:
        self._step = batch.step
        assert all(sample.logprobs is not None and len(sample.logprobs) for sample in batch.samples)
        return StepResult(tokens=sum(int(sample.loss_mask.sum()) for sample in batch.samples), metrics={})

    def checksum(self) -> str:
        return checksum(self.weights())

    def sha256(self) -> str:
        return ""

    def snapshot(self) -> NoModel:
        return self

    def weights(self) -> Weights:
        data = self._step.to_bytes(8, "little")
        return {"step": TensorBytes("uint8", (len(data),), memoryview(data))}

    def save(self, folder: Path, *, hf: bool) -> None:
        folder.mkdir(parents=True)

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        return

    def close(self) -> None:
        return


async def train(url: str, experiment: UUID) -> None:
    """The real trainer's loop: one step after the other, each read back before the next begins; until it is killed."""
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    log = await connect_log(log_url(url), clock=clock, ids=ids)
    member = Membership(log, experiment=experiment, role="trainer", slot=-1, clock=clock, ids=ids, id=ordered_id())
    follower, state = await _followed(log, experiment, clock)
    with ThreadPoolExecutor(1) as thread:
        trainer = Trainer(member, follower, state, NoModel(), thread=thread, log=logger(role="trainer"))
        await trainer.run(asyncio.Event())


async def _followed(log: EventLog, experiment: UUID, clock: SystemClock) -> tuple[Follower, RunState]:
    state = RunState(experiment, spine_only=True)
    start = (await beginning_of(log, experiment)).positions
    streams = (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
    positions = {p: start.get(p, 0) for p in (partition_of(stream, experiment) for stream in streams)}
    follower = Follower(log, state, experiment=experiment, positions=positions, clock=clock)
    await follower.catch_up()
    return follower, state


async def read(url: str, experiment: UUID, *, assemble: bool = True) -> None:
    """Assembles each plan as soon as it is there, and appends the steps that are done, in order; until it is killed.

    Without `assemble` it only announces the steps.
    """
    tune_collector()
    clock = SystemClock()
    ids = SystemIds(clock)
    log = await connect_log(log_url(url), clock=clock, ids=ids)
    member = Membership(log, experiment=experiment, role="trainer", slot=-1, clock=clock, ids=ids, id=ordered_id())
    follower, state = await _followed(log, experiment, clock)
    await member.join(0)
    owned = [partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)]
    lease = await RoleLease.acquire(
        log,
        follower,
        role=Role(experiment, "trainer"),
        partitions=owned,
        owner=member.id,
        clock=clock,
        ids=member.ids,
    )
    first: list[Event] = [GenerationStarted(generation=0, version=0), _published(0, "0")]
    await lease.append([lease.writer.draft(event, experiment=experiment) for event in first])
    assert state.spine.spec is not None
    assembly = Assembly(log, state.spine.spec)
    under_way: asyncio.Queue[asyncio.Task[StepCompleted]] = asyncio.Queue(64)

    async def step(plan: BatchPlanned) -> StepCompleted:
        samples = (await assembly.batch(plan, 0)).samples if assemble else []
        return StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=0,
            generation=0,
            checksum=str(plan.step),
            items=len(plan.experiences),
            tokens=sum(int(sample.loss_mask.sum()) for sample in samples),
            duration_s=0.0,
        )

    async def record() -> None:
        while True:
            done: list[Event] = []
            while not done or not under_way.empty():
                completed = await (await under_way.get())
                done.append(completed)
                if completed.step % PUBLISHED_STEPS == 0:  # explorers may run ahead of announced weights only
                    done.append(_published(completed.step, completed.checksum))
            await lease.append([lease.writer.draft(event, experiment=experiment) for event in done])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member.beat(lambda: None))
        tasks.create_task(record())
        begun = 0
        while True:
            await follower.pump(wait_s=0.5)
            while (plan := state.spine.plans.get(begun + 1)) is not None:
                begun += 1
                await under_way.put(tasks.create_task(step(plan.event)))


def _published(version: int, checksum: str) -> WeightsPublished:
    """An announcement of weights that nobody loads."""
    return WeightsPublished(
        version=version,
        generation=0,
        stage=0,
        method="checkpoint",
        path="",
        manifest=f"m{version}",
        checksum=checksum,
        size_bytes=0,
    )


async def produce_bare(socket: Path, seconds: float) -> None:
    """Groups of eight to the buffer of `bare_buffer`, several in flight."""
    responses, group = Responses(0), derive(UUID(int=1), "group")
    encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
    reader, writer = await asyncio.open_unix_connection(str(socket))
    in_flight = asyncio.Semaphore(APPENDS_IN_FLIGHT)

    async def count_acks() -> None:
        while await reader.read(1):
            in_flight.release()

    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    async with asyncio.TaskGroup() as tasks:
        acks = tasks.create_task(count_acks())
        while loop.time() < end_s:
            await in_flight.acquire()
            events = [responses.event(group=group, rollout=n, stage=0, lease=group, version=0) for n in range(8)]
            body = encoder.encode(events)
            writer.write(b"w" + len(body).to_bytes(4, "little") + body)
            await writer.drain()
        acks.cancel()
    writer.close()


async def consume_bare(socket: Path, seconds: float) -> int:
    """Batches of 64 from the buffer, decoded; returns how many experiences."""
    decode = msgspec.msgpack.Decoder(list[ExperienceProduced]).decode
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=1 << 24)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    count = 0
    writer.write(b"r")
    while loop.time() < end_s:
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        writer.write(b"r")  # the next one, while this one is looked at
        events = decode(body)
        assert all(len(event.logprobs.view()) for event in events)
        count += len(events)
    writer.close()
    return count
