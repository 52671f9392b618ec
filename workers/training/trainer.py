"""`Trainer`: the process's loop. It takes the history up, then executes planned batches in spine order."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final

from rftd.ops import faults
from rftd.ops.errors import DataError, WorkError
from rftd.ops.logs import Logger
from rftd.streams import topics
from rftd.streams.envelope import Draft
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.fencing import Role
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.follower import Follower
from rftd.streams.role import RoleLease
from rftd.streams.schedule import checkpoint_due, publish_due
from rftd.streams.spec import ExperimentSpec
from rftd.streams.spine_digest import SpineDigest, follow_digest
from rftd.streams.topics import partition_of
from rftd.workers.devices.device_turn import DeviceTurn
from rftd.workers.membership import Membership
from rftd.workers.training.engine import RestingEngine, TrainBatch, TrainerEngine
from rftd.workers.training.environment import environment_of
from rftd.workers.training.execution import Execution
from rftd.workers.training.history import Resumption, resume_from
from rftd.workers.training.inheritance import inherit
from rftd.workers.training.publishing import Present, Publisher
from rftd.workers.training.saving import Saver
from rftd.workers.training.tidying import tidy

IDLE_S: Final = 0.5
"""A trainer waits so long for a plan; while it has none, it looks so often whether its weights are still there."""


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
        submitted: int = 0,
    ) -> None:
        """`submitted` is where on the spine the experiment was."""
        self._member = member
        self._follower = follower
        self._state = state
        self._engine = engine
        self._thread = thread
        self._log = log
        self._submitted = submitted
        self._lease: RoleLease | None = None
        self._digest: SpineDigest | None = None
        self._turn: DeviceTurn | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Works until the experiment ends or `stop` is set; the step under way is finished first.

        Raises FencedError, whatever went wrong, if it was replaced: its successor may have removed files that it used.
        """
        try:
            await self._run(stop)
        except* Exception:
            if self._lease is not None:
                await self._lease.confirm()
            raise

    async def _run(self, stop: asyncio.Event) -> None:
        await self._follower.catch_up()
        spec = self._state.spine.spec
        assert spec is not None
        await self._member.join(0)
        execution = Execution(self._member.log, self._state, spec, self._engine, thread=self._thread)
        if any(stage.sync.turns for stage in spec.stages):
            self._turn = DeviceTurn(Path(spec.job_dir), self._member.clock)
            if isinstance(self._engine, RestingEngine):
                self._turn.share(_OnThread(execution, self._engine))
        async with asyncio.TaskGroup() as tasks:
            beat = tasks.create_task(self._member.beat(lambda: None))
            try:
                lease = self._lease = await self._acquire()
                self._digest = await self._follow_spine()
                publisher = Publisher(self._engine, lease, self._state, spec, self._thread, log=self._log)
                saver = Saver(self._engine, lease, self._state, spec, log=self._member.log, thread=self._thread)
                again = True
                while again:
                    await self._take_up(stop, lease, execution, publisher, saver, spec)
                    if self._turn is not None and self._turn.shared:
                        async with self._turn.training():
                            pass  # at its end the engine rests until its first step
                    again = await self._work(stop, tasks, lease, execution, publisher, saver, spec)
            finally:
                beat.cancel()
                await execution.call(self._engine.close)
                if self._turn is not None:
                    self._turn.close()

    async def _follow_spine(self) -> SpineDigest:
        """What steps and checkpoints say of the spine that this process reads."""
        spine = self._state.spine
        fresh = spine.furthest == (spine.forked.at_step if spine.forked is not None else 0)
        begin = self._submitted if fresh else None
        return await follow_digest(self._member.log, self._follower, self._state.experiment, spine.mark, begin=begin)

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

    async def _take_up(
        self,
        stop: asyncio.Event,
        lease: RoleLease,
        execution: Execution,
        publisher: Publisher,
        saver: Saver,
        spec: ExperimentSpec,
    ) -> None:
        """Loads the newest good checkpoint (or the base), and announces the generation and its first weights."""
        spine = self._state.spine
        self._member.pulse.state = "take_up"
        await tidy(lease, self._state, spec, self._log)
        needed = await publisher.needed()

        def accept(committed: CheckpointCommitted) -> bool:
            return needed is None or committed.step <= needed

        resumption = await asyncio.to_thread(resume_from, self._state, accept)
        while True:
            if resumption.checkpoint is None and spine.forked is not None and spine.forked.at_step > 0:
                await self._inherit(stop, lease, execution, publisher, saver, spec, spine.forked, resumption.reason)
                return
            try:
                version = await execution.take_up(resumption)
                break
            except DataError:
                # What was damaged after it was verified is passed over by name; what is whole and unfit is an error.
                tried = resumption.checkpoint
                resumption = await asyncio.to_thread(resume_from, self._state, accept)
                if resumption.checkpoint == tried:
                    raise
        checkpoint = resumption.checkpoint
        started = GenerationStarted(
            generation=spine.generation + 1,
            version=version,
            checkpoint=checkpoint.path if checkpoint else "",
            reason="; ".join(filter(None, (_why(needed), resumption.reason))),
            environment=environment_of(self._engine, spec),
        )
        faults.point("trainer.before_generation")
        await lease.append([lease.writer.draft(started, experiment=self._state.experiment)])
        faults.point("trainer.after_generation")
        checksum = await execution.call(self._engine.checksum)
        self._log.info("generation.started", generation=spine.generation, version=version, reason=resumption.reason)
        if checkpoint is None:
            present = Present(version=0, generation=0, stage=0, checksum=checksum)
        else:
            present = Present(
                version=version, generation=checkpoint.generation, stage=checkpoint.stage, checksum=checksum
            )
        if (
            checkpoint is None
            or publish_due(spec.stages[checkpoint.stage], checkpoint.stage_step)
            or spec.stages[checkpoint.stage].sync.style == "explorer_driven"  # it may have been asked for them
            or (spine.forked is not None and version == spine.forked.at_step)
        ):
            await publisher.publish(present)
        await publisher.mend(present)

    async def _inherit(
        self,
        stop: asyncio.Event,
        lease: RoleLease,
        execution: Execution,
        publisher: Publisher,
        saver: Saver,
        spec: ExperimentSpec,
        forked: ExperimentForked,
        reason: str,
    ) -> None:
        """A fork without a checkpoint: its parent's history up to the shared version becomes its own first one."""
        spine = self._state.spine

        async def carry_on() -> bool:
            await self._follower.pump(wait_s=0.0)
            lease.check()
            return not stop.is_set() and not (spine.status and spine.status.ended)

        inherited = await inherit(
            self._member.log,
            forked,
            self._engine,
            thread=self._thread,
            clock=self._member.clock,
            carry_on=carry_on,
        )
        if inherited is None:
            stop.set()
            return
        if inherited.warning:
            self._log.warning("fork.other_weights", reason=inherited.warning)
        started = GenerationStarted(
            generation=spine.generation + 1,
            version=forked.at_step,
            checkpoint=inherited.checkpoint,
            reason="; ".join(filter(None, (reason, inherited.reason, inherited.warning))),
            checksum=inherited.checksum,
            environment=environment_of(self._engine, spec),
        )
        stage_step = forked.at_step - spine.first_versions[forked.stage]
        checkpoint = await saver.begin(started, forked.stage, stage_step)
        self._log.info("generation.started", generation=started.generation, version=started.version, fork=True)
        await execution.take_up(Resumption(checkpoint=checkpoint, reason=""))
        await publisher.publish(
            Present(
                version=started.version,
                generation=started.generation,
                stage=forked.stage,
                checksum=inherited.checksum,
            )
        )

    async def _work(
        self,
        stop: asyncio.Event,
        tasks: asyncio.TaskGroup,
        lease: RoleLease,
        execution: Execution,
        publisher: Publisher,
        saver: Saver,
        spec: ExperimentSpec,
    ) -> bool:
        """True if the history is to be taken up again."""
        spine = self._state.spine
        pulse = self._member.pulse
        present: Present | None = None
        idle_s = self._member.clock.monotonic_s()
        mend_s = idle_s + IDLE_S
        while not stop.is_set() and not (spine.status and spine.status.ended):
            plan = await execution.plan(spine.version + 1) if spine.status is Status.RUNNING else None
            if plan is None:
                pulse.state = "paused" if spine.status is Status.PAUSED else "wait_batch"
                # What was published is seldom gone: to look for it must not keep the next plan waiting.
                if not await self._follower.pump(wait_s=IDLE_S) or self._member.clock.monotonic_s() >= mend_s:
                    if await publisher.mend(present, idle_s=self._member.clock.monotonic_s() - idle_s):
                        return True
                    mend_s = self._member.clock.monotonic_s() + IDLE_S
                lease.check()
                await self._answer(tasks, publisher, present)
                continue
            pulse.state = "assemble"
            batch = await execution.batch(plan)
            pulse.state = "busy"
            following = spine.plans.get(plan.step + 1)
            async with asyncio.TaskGroup() as both:
                both.create_task(execution.build_ahead(following.event if following else None))
                done = await self._step(lease, execution, plan, batch, spec)
            pulse.version = done.step
            present = Present(version=done.step, generation=done.generation, stage=plan.stage, checksum=done.checksum)
            stage = spec.stages[plan.stage]
            stage_step = batch.stage_step
            if publish_due(stage, stage_step) or publisher.announced(done.step):
                pulse.state = "publish"
                await publisher.publish_aside(tasks, present)
            await self._answer(tasks, publisher, present)
            if checkpoint_due(stage, stage_step):
                pulse.state = "checkpoint"
                await publisher.settle()
                await saver.save(done, stage_step)
            idle_s = self._member.clock.monotonic_s()
        await publisher.settle()
        return False

    async def _answer(self, tasks: asyncio.TaskGroup, publisher: Publisher, present: Present | None) -> None:
        """Answers explorers that ask for newer weights, once every step that was ever completed is executed again."""
        request = self._state.spine.request
        spine = self._state.spine
        if request is None or not spine.caught_up or self._state.weights.answered(request):
            return
        self._member.pulse.state = "publish"
        await publisher.answer(tasks, request, present)

    async def _step(
        self, lease: RoleLease, execution: Execution, plan: BatchPlanned, batch: TrainBatch, spec: ExperimentSpec
    ) -> StepCompleted:
        faults.point("trainer.before_step")
        async with self._device():
            draft, done = await self._executed(lease, execution, plan, batch, spec)
        faults.point("trainer.before_step_append")
        await lease.append([draft])
        faults.point("trainer.after_step_append")
        if plan.batch in self._state.spine.batches.abandoned:
            raise WorkError(
                f"the batch of step {plan.step} was abandoned while it was trained",
                where=f"batch {plan.batch}",
                fix="nothing to do: the trainer begins again at its newest checkpoint",
            )
        self._member.pulse.tokens_total += done.tokens
        return done

    def _device(self) -> AbstractAsyncContextManager[None]:
        """The device for one step: alone, where rollouts run on it in turn."""
        if self._turn is None:
            return nullcontext()
        self._member.pulse.state = "wait_turn"
        return self._turn.training()

    async def _executed(
        self, lease: RoleLease, execution: Execution, plan: BatchPlanned, batch: TrainBatch, spec: ExperimentSpec
    ) -> tuple[Draft, StepCompleted]:
        self._member.pulse.state = "busy"
        began_s = self._member.clock.monotonic_s()
        digest_due = spec.deterministic or checkpoint_due(spec.stages[plan.stage], batch.stage_step)
        executed = await execution.execute(plan, batch, sha256=digest_due)
        done = StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=plan.stage,
            generation=self._state.spine.generation,
            checksum=executed.checksum,
            sha256=executed.sha256,
            items=len(plan.experiences) + len(plan.rows),
            tokens=executed.result.tokens,
            duration_s=self._member.clock.monotonic_s() - began_s,
            metrics=executed.result.metrics,
            skipped=executed.result.skipped,
            spine=self._digest.mark if self._digest is not None else None,
        )
        if done.skipped:
            self._log.warning("step.skipped", step=done.step, batch=str(done.batch), reason=done.skipped)
        draft = lease.writer.draft(
            done, experiment=self._state.experiment, causation=plan.batch, correlation=plan.batch
        )
        return draft, done


def _why(needed: int | None) -> str:
    return "" if needed is None else f"the weights of version {needed} are gone, and an evaluation waits for them"


class _OnThread:
    """Implements `Resting` of a device's turns for a trainer engine, on the engine's own thread."""

    def __init__(self, execution: Execution, engine: RestingEngine) -> None:
        self._execution = execution
        self._engine = engine

    async def rest(self) -> None:
        await self._execution.call(self._engine.rest)

    async def wake(self) -> None:
        await self._execution.call(self._engine.wake)
