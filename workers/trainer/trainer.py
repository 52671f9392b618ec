"""`Trainer`: the process's loop. It takes the history up, then executes planned batches in spine order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from rftd.ops import faults
from rftd.ops.errors import LogLossError
from rftd.ops.logs import Logger
from rftd.streams import topics
from rftd.streams.codec import decode_as
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.fencing import Role
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.follower import Follower
from rftd.streams.role import RoleLease
from rftd.streams.spec import ExperimentSpec
from rftd.streams.topics import partition_of
from rftd.workers.membership import Membership
from rftd.workers.policies.schedule import checkpoint_due, publish_due
from rftd.workers.trainer.assembly import Assembly
from rftd.workers.trainer.engine import TrainBatch, TrainerEngine
from rftd.workers.trainer.history import resume_from
from rftd.workers.trainer.publishing import Publisher
from rftd.workers.trainer.saving import Saver

T = TypeVar("T")


class Trainer:
    """One trainer process of one experiment. All engine calls happen on `thread`, one at a time."""

    def __init__(
        self,
        member: Membership,
        follower: Follower,
        state: RunState,
        engine: TrainerEngine,
        *,
        thread: Executor,
        log: Logger,
    ) -> None:
        self._member = member
        self._follower = follower
        self._state = state
        self._engine = engine
        self._thread = thread
        self._log = log
        self._stage = -1
        """The stage that the engine is set up for."""

    async def run(self, stop: asyncio.Event) -> None:
        """Works until the experiment ends or `stop` is set; the step under way is finished first."""
        await self._follower.catch_up()
        spec = self._state.spine.spec
        assert spec is not None
        await self._member.join(0)
        async with asyncio.TaskGroup() as tasks:
            beat = tasks.create_task(self._member.beat(lambda: None))
            try:
                lease = await self._acquire()
                publisher = Publisher(self._engine, lease, self._state, spec, self._thread)
                saver = Saver(self._engine, lease, self._state, spec, log=self._member.log, thread=self._thread)
                assembly = Assembly(self._member.log, spec)
                await self._take_up(lease, publisher, spec)
                await self._work(stop, tasks, lease, publisher, saver, assembly, spec)
            finally:
                beat.cancel()
                await self._off_loop(self._engine.close)

    async def _acquire(self) -> RoleLease:
        experiment = self._state.experiment
        return await RoleLease.acquire(
            self._member.log,
            self._follower,
            role=Role(experiment, "trainer"),
            partitions=[
                partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
            ],
            owner=self._member.id,
            source=self._member.source,
            clock=self._member.clock,
            ids=self._member.ids,
        )

    async def _take_up(self, lease: RoleLease, publisher: Publisher, spec: ExperimentSpec) -> None:
        """Loads the newest good checkpoint (or the base), and announces the generation and its first weights."""
        spine = self._state.spine
        await self._off_loop(lambda: self._engine.open(spec, spec.stages[0].model.path))
        resumption = await asyncio.to_thread(resume_from, self._state)
        checkpoint, version = resumption.checkpoint, 0
        if checkpoint is not None:
            version, self._stage = checkpoint.step, checkpoint.stage
            stage = spec.stages[checkpoint.stage]
            await self._off_loop(lambda: self._engine.load(Path(checkpoint.path), stage))
        started = GenerationStarted(
            generation=spine.generation + 1,
            version=version,
            checkpoint=checkpoint.path if checkpoint else "",
            reason=resumption.reason,
        )
        faults.point("trainer.before_generation")
        await lease.append([lease.writer.draft(started, experiment=self._state.experiment)])
        faults.point("trainer.after_generation")
        checksum = await self._off_loop(self._engine.checksum)
        self._log.info("generation.started", generation=spine.generation, version=version, reason=resumption.reason)
        if checkpoint is None:
            await publisher.publish(0, 0, 0, checksum)
        elif publish_due(spec.stages[checkpoint.stage], checkpoint.stage_step):
            await publisher.publish(version, checkpoint.generation, checkpoint.stage, checksum)

    async def _work(
        self,
        stop: asyncio.Event,
        tasks: asyncio.TaskGroup,
        lease: RoleLease,
        publisher: Publisher,
        saver: Saver,
        assembly: Assembly,
        spec: ExperimentSpec,
    ) -> None:
        spine, pulse = self._state.spine, self._member.pulse
        ahead: tuple[UUID, TrainBatch] | None = None
        while not stop.is_set() and not (spine.status and spine.status.ended):
            plan = await self._plan(spine.version + 1) if spine.status is Status.RUNNING else None
            if plan is None:
                pulse.state = "paused" if spine.status is Status.PAUSED else "wait_batch"
                await self._follower.pump(wait_s=0.5)
                lease.check()
                continue
            pulse.state = "busy"
            if ahead is None or ahead[0] != plan.batch:
                ahead = plan.batch, await assembly.batch(plan, spine.first_versions[plan.stage])
            batch = ahead[1]
            async with asyncio.TaskGroup() as both:
                following = both.create_task(self._assemble_ahead(assembly, plan.step + 1))
                done = await self._step(lease, plan, batch, spec)
            ahead = following.result()
            pulse.version = done.step
            stage, stage_step = spec.stages[plan.stage], batch.stage_step
            if publish_due(stage, stage_step):
                await publisher.publish_aside(tasks, done.step, done.generation, plan.stage, done.checksum)
            if checkpoint_due(stage, stage_step):
                pulse.state = "checkpoint"
                await publisher.settle()
                await saver.save(done, stage_step)
        await publisher.settle()

    async def _assemble_ahead(self, assembly: Assembly, step: int) -> tuple[UUID, TrainBatch] | None:
        """The next batch, built while this one trains, if its plan is known already."""
        spine = self._state.spine
        plan = spine.plans.get(step)
        if plan is None or plan.event.stage not in spine.first_versions:
            return None
        return plan.event.batch, await assembly.batch(plan.event, spine.first_versions[plan.event.stage])

    async def _plan(self, step: int) -> BatchPlanned | None:
        """The plan of a step; one that an older generation executed is read again from the log."""
        spine = self._state.spine
        if (plan := spine.plans.get(step)) is not None:
            return plan.event
        offset = spine.plan_offsets.get(step)
        if offset is None:
            return None
        partition = partition_of(topics.EXPERIMENTS, self._state.experiment)
        records = await self._member.log.read(partition, offset, max_records=1)
        if not records or records[0].offset != offset:
            raise LogLossError(f"the plan of step {step} is missing", where=f"{partition}@{offset}")
        return decode_as(records[0], BatchPlanned)

    async def _step(
        self, lease: RoleLease, plan: BatchPlanned, batch: TrainBatch, spec: ExperimentSpec
    ) -> StepCompleted:
        faults.point("trainer.before_step")
        began_s = self._member.clock.monotonic_s()
        if plan.stage != self._stage:
            await self._off_loop(lambda: self._engine.begin_stage(spec.stages[plan.stage]))
            self._stage = plan.stage
        result = await self._off_loop(lambda: self._engine.train(batch))
        checksum = await self._off_loop(self._engine.checksum)
        digest_due = spec.deterministic or checkpoint_due(spec.stages[plan.stage], batch.stage_step)
        done = StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=plan.stage,
            generation=self._state.spine.generation,
            checksum=checksum,
            sha256=await self._off_loop(self._engine.sha256) if digest_due else None,
            items=len(batch.samples),
            tokens=result.tokens,
            duration_s=self._member.clock.monotonic_s() - began_s,
            metrics=result.metrics,
        )
        faults.point("trainer.before_step_append")
        await lease.append(
            [lease.writer.draft(done, experiment=self._state.experiment, causation=plan.batch, correlation=plan.batch)]
        )
        faults.point("trainer.after_step_append")
        self._member.pulse.tokens_total += result.tokens
        return done

    async def _off_loop(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
