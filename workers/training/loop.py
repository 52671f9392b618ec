"""`TrainingLoop`: the loop of the trainer holding the lease: resume the history, then train plans."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops import faults
from rftd.ops.errors import DataError, WorkError
from rftd.ops.logs import Logger
from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.tracer import TraceSpan
from rftd.storage.files.service_state import names_service
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.folds.worker_state import WorkerState
from rftd.streams.log.envelope import Draft
from rftd.streams.log.follower import Follower
from rftd.streams.log.role import RoleLease
from rftd.streams.log.spine_digest import SpineDigest
from rftd.streams.spec.schedule import checkpoint_due, publish_due
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.device_turn import DeviceTurn
from rftd.workers.hosts.membership import Membership
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.training.environment import environment_of
from rftd.workers.training.execution import Execution
from rftd.workers.training.history import Resumption, resume_from
from rftd.workers.training.inheritance import inherit
from rftd.workers.training.publishing import CurrentWeights, Publisher
from rftd.workers.training.saving import Saver
from rftd.workers.training.step_log import StepLog
from rftd.workers.training.tidying import tidy
from rftd.workers.training.training_traces import TrainingTraces, link_consumed, note_step

IDLE_S: Final = 0.5
"""Longest wait for a plan, and pause between two checks of published weights without a plan, in seconds."""


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """The training of one experiment under one lease, from the newest valid checkpoint to the experiment's end."""

    member: Membership
    """Membership of the process: its id, clock, log and heartbeat."""
    follower: Follower
    """Follower folding the log into `state`."""
    state: RunState
    """State of the run, folded from the log."""
    lease: RoleLease
    """Lease of the trainer's role."""
    digest: SpineDigest
    """Digest of the spine as read by this process, recorded in steps and checkpoints."""
    execution: Execution
    """Engine executing the plans."""
    publisher: Publisher
    """Publisher of weights to explorers."""
    saver: Saver
    """Writer of checkpoints."""
    turn: DeviceTurn | None
    """Turns of rollouts and steps on one shared device; None for a trainer with a device of its own."""
    log: Logger
    """Logger of the process."""
    steps: StepLog
    """Log lines of steps."""
    traces: TrainingTraces
    """Spans of the trainer."""
    stop: asyncio.Event
    """Set to end the loop after the current step."""

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Works until the experiment ends or `stop` is set; publications run concurrently in `tasks`."""
        again = True
        while again:
            await self._take_up()
            if self.turn is not None and self.turn.shared:
                async with self.turn.training():
                    pass  # afterwards the engine rests until its first step
            again = await self._work(tasks)

    @property
    def spec(self) -> ExperimentSpec:
        """The specification as of now; ending a task queue shortens its stage."""
        assert self.state.spine.spec is not None
        return self.state.spine.spec

    @property
    def _over(self) -> bool:
        """True if the loop must end: `stop` is set, or the experiment has ended."""
        return self.stop.is_set() or self.state.spine.ended

    async def _take_up(self) -> None:
        """Loads the newest good checkpoint (or the base), and announces the generation and its first weights."""
        spine = self.state.spine
        self.member.pulse.state = WorkerState.TAKE_UP
        # First of all: a predecessor may have died between a rename and its event, so its remains are put back or
        # removed before any file is believed.
        removed_states = await tidy(self.lease, self.state, self.spec, self.log)
        needed = await self.publisher.begin_remaking()

        forgotten: dict[str, str] = {}

        def accept(committed: CheckpointCommitted) -> bool:
            return (needed is None or committed.step <= needed) and committed.path not in forgotten

        resumption = await asyncio.to_thread(resume_from, self.state, accept)
        while True:
            if resumption.checkpoint is None and spine.forked is not None and spine.forked.at_step > 0:
                await self._inherit(spine.forked, resumption.reason)
                return
            try:
                version = await self.execution.take_up(resumption)
                break
            except DataError as error:
                # A checkpoint damaged after its verification is passed over by name; a whole but unsuitable one is an
                # error.
                failed = resumption.checkpoint
                if failed is not None and await asyncio.to_thread(names_service, Path(failed.path)):
                    # Its files here are whole and say nothing about the state at the service, which may have forgotten
                    # it.
                    forgotten[failed.path] = f"step {failed.step}: {error.what}"
                resumption = await asyncio.to_thread(resume_from, self.state, accept)
                if resumption.checkpoint == failed:
                    raise
                reason = "; ".join(filter(None, (*forgotten.values(), resumption.reason)))
                resumption = msgspec.structs.replace(resumption, reason=reason)
        # Only now: the engine knows its service once it is open.
        await self.saver.forget(removed_states)
        await self._announce(resumption, version, needed)

    async def _announce(self, resumption: Resumption, version: int, needed: int | None) -> None:
        """Begins the generation from the loaded weights, and publishes them if explorers need them."""
        spine = self.state.spine
        checkpoint = resumption.checkpoint
        started = GenerationStarted(
            generation=spine.generation + 1,
            version=version,
            checkpoint=checkpoint.path if checkpoint else "",
            reason="; ".join(filter(None, (_reason_of_lost_version(needed), resumption.reason))),
            environment=environment_of(self.execution.engine, self.spec),
        )
        faults.point("trainer.before_generation")
        # Before any step: with this event the spine goes back to `version`, and the steps above it are executed again.
        await self.lease.append([self.lease.writer.draft(started, experiment=self.state.experiment)])
        faults.point("trainer.after_generation")
        # In the recorded form: an announcement of these weights counts if its step has an equal checksum.
        recorded = checkpoint.checksum if checkpoint else self.execution.base()
        checksum = await self.execution.checksum(like=recorded)
        self.log.info(
            "generation.started",
            generation=spine.generation,
            version=version,
            checkpoint=started.checkpoint,
            reason=started.reason,
        )
        if checkpoint is None:
            current = CurrentWeights(version=0, generation=0, stage=0, checksum=checksum)
        else:
            # The generation that made the weights: its earlier announcements still count.
            current = CurrentWeights(
                version=version, generation=checkpoint.generation, stage=checkpoint.stage, checksum=checksum
            )
        if (
            checkpoint is None
            or publish_due(self.spec.stages[checkpoint.stage], checkpoint.stage_step)
            or self.spec.stages[checkpoint.stage].synchronizer.sync_style
            == "explorer_driven"  # explorers may have asked for them
            or (spine.forked is not None and version == spine.forked.at_step)
        ):
            await self.publisher.publish(current)
        await self.publisher.mend(current)
        self.steps.published(self.publisher.newest)

    async def _inherit(self, forked: ExperimentForked, reason: str) -> None:
        """Begins a fork without a checkpoint: executes the parent's steps up to the forked version anew, and saves the
        fork's first checkpoint.

        The execution may take many steps, so it stops at a lost lease or at the end of the experiment.
        """
        spine = self.state.spine

        async def carry_on() -> bool:
            await self.follower.pump(wait_s=0.0)
            self.lease.check()
            return not self._over

        inherited = await inherit(
            self.member.log,
            forked,
            self.execution.engine,
            thread=self.execution.thread,
            clock=self.member.clock,
            carry_on=carry_on,
        )
        if inherited is None:
            self.stop.set()
            return
        if inherited.warning:
            self.log.warning("fork.other_weights", reason=inherited.warning)
        started = GenerationStarted(
            generation=spine.generation + 1,
            version=forked.at_step,
            checkpoint=inherited.checkpoint,
            reason="; ".join(filter(None, (reason, inherited.reason, inherited.warning))),
            checksum=inherited.checksum,
            environment=environment_of(self.execution.engine, self.spec),
        )
        stage_step = forked.at_step - spine.first_versions[forked.stage]
        began_s = self.member.clock.monotonic_s()
        checkpoint = await self.saver.begin(started, forked.stage, stage_step)
        self.steps.checkpoint(checkpoint, self.member.clock.monotonic_s() - began_s)
        self.log.info("generation.started", generation=started.generation, version=started.version, fork=True)
        # The engine is open under the parent's specification: it is opened again under the fork's, from that
        # checkpoint.
        await self.execution.take_up(Resumption(checkpoint=checkpoint, reason=""))
        await self.publisher.publish(
            CurrentWeights(
                version=started.version,
                generation=started.generation,
                stage=forked.stage,
                checksum=inherited.checksum,
            )
        )
        self.steps.published(self.publisher.newest)

    async def _work(self, tasks: asyncio.TaskGroup) -> bool:
        """Trains plan after plan. Returns True if the history has to be resumed again, False once the work is over."""
        spine = self.state.spine
        pulse = self.member.pulse
        clock = self.member.clock
        current: CurrentWeights | None = None
        idle_s = clock.monotonic_s()
        mend_s = idle_s + IDLE_S
        while not self._over:
            plan = await self.execution.plan(spine.version + 1) if spine.status is Status.RUNNING else None
            if plan is None:
                pulse.state = WorkerState.PAUSED if spine.status is Status.PAUSED else WorkerState.WAIT_BATCH
                # Published weights are seldom missing: the check for them must not delay the next plan.
                if not await self.follower.pump(wait_s=IDLE_S) or clock.monotonic_s() >= mend_s:
                    if await self.publisher.mend(current, idle_s=clock.monotonic_s() - idle_s):
                        return True
                    mend_s = clock.monotonic_s() + IDLE_S
                # Without a plan nothing is appended, so nothing else would stop a replaced trainer.
                self.lease.check()
                await self._answer(tasks, current)
                continue
            with self.traces.step(plan) as span:
                current = await self._train(plan, tasks, span)
            idle_s = clock.monotonic_s()
        await self.publisher.settle()
        self.steps.published(self.publisher.newest)
        return False

    async def _train(self, plan: BatchPlanned, tasks: asyncio.TaskGroup, span: TraceSpan | None) -> CurrentWeights:
        """Trains a plan, then publishes and saves the new weights if due."""
        pulse = self.member.pulse
        pulse.state = WorkerState.ASSEMBLE
        with self.traces.part(names.ASSEMBLE):
            batch = await self.execution.batch(plan)
        if span is not None:
            link_consumed(span, self.execution.traceparents(plan))
        pulse.state = WorkerState.BUSY
        following = self.state.spine.plans.get(plan.step + 1)
        async with asyncio.TaskGroup() as overlapping:
            overlapping.create_task(self.execution.build_ahead(following.event if following else None))
            done = await self._train_step(plan, batch)
        if span is not None:
            note_step(span, done)
        pulse.version = done.step
        current = CurrentWeights(
            version=done.step, generation=done.generation, stage=plan.stage, checksum=done.checksum
        )
        stage = self.spec.stages[plan.stage]
        stage_step = batch.stage_step
        # `announced`: an earlier generation announced this version, and its bytes may differ from these.
        if publish_due(stage, stage_step) or self.publisher.announcements_of(done.step):
            pulse.state = WorkerState.PUBLISH
            await self.publisher.publish_aside(tasks, current)
        await self._answer(tasks, current)
        if checkpoint_due(stage, stage_step):
            pulse.state = WorkerState.CHECKPOINT
            await self._save(done, stage_step)
        return current

    async def _save(self, done: StepCompleted, stage_step: int) -> None:
        """Saves a checkpoint, after the present publication is in the log."""
        await self.publisher.settle()
        began_s = self.member.clock.monotonic_s()
        with self.traces.checkpoint(done):
            saved = await self.saver.save(done, stage_step)
        if saved is not None:
            self.steps.checkpoint(saved, self.member.clock.monotonic_s() - began_s)

    async def _answer(self, tasks: asyncio.TaskGroup, current: CurrentWeights | None) -> None:
        """Answers explorers that ask for newer weights, once every step ever completed is executed again."""
        spine = self.state.spine
        request = spine.request
        if request is None or not spine.caught_up or self.state.weights.answered(request):
            return
        self.member.pulse.state = WorkerState.PUBLISH
        await self.publisher.publish_aside(tasks, current, request)

    async def _train_step(self, plan: BatchPlanned, batch: TrainBatch) -> StepCompleted:
        """Executes one plan and appends a `step.completed`. Raises WorkError if the batch was abandoned meanwhile."""
        faults.point("trainer.before_step")
        async with self._device_for_step():
            draft, done = await self._execute_plan(plan, batch)
        faults.point("trainer.before_step_append")
        # A crash before this append loses the step and nothing else: the plan is in the log, and is executed again.
        await self.lease.append([draft])
        faults.point("trainer.after_step_append")
        # The append reads up to itself, so an earlier verdict on the spine is folded by now. The engine has taken the
        # step, which does not count: only an older checkpoint has the right weights.
        if plan.batch in self.state.spine.batches.abandoned:
            raise WorkError(
                f"the batch of step {plan.step} was abandoned while it was trained",
                where=f"batch {plan.batch}",
                fix="nothing to do: the trainer begins again at its newest checkpoint",
            )
        self.member.pulse.tokens_total += done.tokens
        self.steps.step(done, self.spec.stages[plan.stage].name, self.publisher.newest)
        return done

    def _device_for_step(self) -> AbstractAsyncContextManager[None]:
        """Returns the context of the device for one step: exclusive, if rollouts share the device in turn."""
        if self.turn is None:
            return nullcontext()
        self.member.pulse.state = WorkerState.WAIT_TURN
        return self.turn.training()

    async def _execute_plan(self, plan: BatchPlanned, batch: TrainBatch) -> tuple[Draft, StepCompleted]:
        """Executes a plan on the engine; returns the draft of its event, and the event."""
        self.member.pulse.state = WorkerState.BUSY
        began_s = self.member.clock.monotonic_s()
        # sha256 takes many times as long as a checksum: only for comparison by a replay or a checkpoint.
        digest_due = self.spec.deterministic or checkpoint_due(self.spec.stages[plan.stage], batch.stage_step)
        with self.traces.part(names.EXECUTE):
            executed = await self.execution.execute(plan, batch, sha256=digest_due)
        done = StepCompleted(
            batch=plan.batch,
            step=plan.step,
            stage=plan.stage,
            generation=self.state.spine.generation,
            checksum=executed.checksum,
            sha256=executed.sha256,
            items=len(plan.experiences) + len(plan.rows),
            tokens=executed.result.tokens,
            duration_s=self.member.clock.monotonic_s() - began_s,
            metrics=executed.result.metrics,
            skipped=executed.result.skipped,
            spine=self.digest.mark,
            announced=self.state.weights.newest_digest,
        )
        draft = self.lease.writer.draft(
            done, experiment=self.state.experiment, causation=plan.batch, correlation=plan.batch
        )
        return draft, done


def _reason_of_lost_version(needed: int | None) -> str:
    """Returns why training resumes before version `needed`; empty without one."""
    return "" if needed is None else f"the weights of version {needed} are gone, and an evaluation waits for them"
