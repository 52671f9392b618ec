"""`Rerun`: executes planned batches again from the log, and compares the weights with the record; appends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from rftd.ops.errors import DataError, LogLossError, NotFoundError, RftdError
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.log import EventLog
from rftd.workers.learning.engine import TrainBatch, TrainerEngine
from rftd.workers.learning.term_notes import TermNotes
from rftd.workers.training.environment import Drift, drift
from rftd.workers.training.execution import Executed, Execution
from rftd.workers.training.history import Resumption, resume_from
from rftd.workers.training.record import TrainingRecord

T = TypeVar("T")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One step as recorded, and as executed again."""

    step: int
    """Number of the step."""
    stage: int
    """Index of the stage."""
    batch: UUID
    """Id of the planned batch."""
    items: int
    """Number of experiences and rows in the batch."""
    tokens: int
    """Number of tokens in the batch."""
    generation: int
    """Generation of the recorded execution in the history of the present weights."""
    recorded: str
    """Recorded checksum of the weights."""
    found: str
    """Checksum of the weights computed again."""
    recorded_sha256: str | None
    """Recorded sha256 of the weights; None if none was recorded."""
    found_sha256: str | None
    """The sha256 computed again; None if none was recorded."""
    recorded_duration_s: float
    """Seconds of the step as originally trained."""

    @property
    def equal(self) -> bool:
        """True if every recorded digest was reproduced."""
        return self.recorded == self.found and self.recorded_sha256 == self.found_sha256


class ExplainedStep(NamedTuple):
    """A step executed again, with the terms of the objective at each token."""

    plan: BatchPlanned
    """Plan of the step."""
    batch: TrainBatch
    """Batch of the plan."""
    notes: TermNotes
    """Terms of the batch's samples."""
    compared: Compared
    """Step as recorded, and as executed again."""


class Rerun:
    """Executes an experiment's training history again on the caller's engine: `take_up` first, then step by step."""

    def __init__(self, log: EventLog, record: TrainingRecord, engine: TrainerEngine, *, thread: Executor) -> None:
        """`record` was read up to the rerun's horizon; engine calls happen on `thread`."""
        spec = record.state.spine.spec
        if spec is None:
            raise LogLossError("the log has lost the submission", fix="run rftd verify on the log")
        self.record = record
        self.surviving = record.surviving()
        self.version = -1
        """Weight version loaded in the engine; -1 before `take_up`."""
        self._log = log
        self._thread = thread
        self._execution = Execution(log, record.state, spec, engine, thread=thread)

    @property
    def last(self) -> int:
        """Number of the last step ever executed."""
        return max(self.surviving, default=0)

    async def take_up(self, *, at_most: int) -> Resumption:
        """Loads the newest valid checkpoint at or below the weight version `at_most`; 0 means the base model.

        A fork without one executes the parent's history up to the shared version. Raises DataError if the model's
        folder holds another base than recorded.
        """
        forked = self.record.state.spine.forked
        shared = forked.at_step if forked is not None else 0

        def accept(checkpoint: CheckpointCommitted) -> bool:
            # A fork's first checkpoint has the shared version, executed by its parent: no step of the fork made it.
            if checkpoint.step == shared > 0:
                return shared <= at_most
            done = self.surviving.get(checkpoint.step)
            return checkpoint.step <= at_most and done is not None and done.checksum == checkpoint.checksum

        resumption = await self._load_newest(accept)
        if resumption.checkpoint is None and shared:
            resumption = await self._inherit(shared, at_most=min(at_most, shared))
        return resumption

    def drift(self, present: Mapping[str, str], last: int) -> tuple[Drift, ...]:
        """Returns the differences of the `present` environment from those of the steps up to `last`, each once over all
        generations.
        """
        used = {done.generation for step, done in self.surviving.items() if self.version < step <= last}
        drifts: dict[tuple[str, str], Drift] = {}
        for generation in sorted(used, reverse=True):
            started = self.record.generations.get(generation)
            for difference in drift(generation, started.environment if started else {}, present):
                drifts.setdefault((difference.name, difference.recorded), difference)
        return tuple(drifts[key] for key in sorted(drifts))

    async def _load_newest(self, accept: Callable[[CheckpointCommitted], bool]) -> Resumption:
        """Loads the newest accepted checkpoint that the engine can load, or the base model."""
        passed: dict[str, str] = {}
        while True:
            resumption = await asyncio.to_thread(
                resume_from, self.record.state, lambda committed: committed.path not in passed and accept(committed)
            )
            checkpoint = resumption.checkpoint
            try:
                self.version = await self._execution.take_up(resumption)
            except DataError as error:
                if checkpoint is None:
                    raise
                # By path: the same folder would be chosen, and fail, again.
                passed[checkpoint.path] = f"step {checkpoint.step}: {error.what}"
            else:
                reasons = filter(None, (*passed.values(), resumption.reason))
                return msgspec.structs.replace(resumption, reason="; ".join(reasons))

    async def _inherit(self, shared: int, *, at_most: int) -> Resumption:
        """Executes the parent's history up to the shared version, then loads weights and optimizer under this
        specification.
        """
        assert self.record.parent is not None and self.record.state.spine.forked is not None
        parent = Rerun(self._log, self.record.parent, self._execution.engine, thread=self._thread)
        resumption = await parent.take_up(at_most=at_most)
        await parent.reach(shared)
        engine = self._execution.engine
        stage = self.record.state.spine.forked.stage
        # Through a folder, like a real fork: engine state beyond the saved files would be lost there too.
        with TemporaryDirectory(prefix="rftd-rerun-") as folder:
            await self.call(lambda: engine.save(Path(folder), hf=False))
            await self._execution.load(Path(folder), stage)
        self.version = shared
        return resumption

    async def reach(self, version: int) -> None:
        """Executes steps until the engine has this weight version."""
        while self.version < version:
            await self.step(self.version + 1)

    async def step(self, number: int) -> Compared:
        """Executes the plan of step `number`, the next one, and compares the digests.

        Raises NotFoundError for a step never executed, LogLossError if its plan or a planned record is not in the log,
        NonFiniteLossError as in training.
        """
        assert number == self.version + 1, (number, self.version)
        recorded = self.surviving.get(number)
        if recorded is None:
            raise NotFoundError(f"step {number} was never executed; the last one is {self.last}")
        plan = await self._planned(recorded)
        batch = await self._execution.batch(plan)
        async with asyncio.TaskGroup() as overlapping:
            overlapping.create_task(self._build_ahead(number + 1))
            executed = await self._execution.execute(plan, batch, sha256=recorded.sha256 is not None, like=recorded)
        return self._compared(plan, recorded, executed)

    async def explain(self, number: int) -> ExplainedStep:
        """Executes the plan of step `number`, the next one, and notes the terms of the objective at each token.

        The engine is an `ExplainingEngine`. Raises as `step`.
        """
        assert number == self.version + 1, (number, self.version)
        recorded = self.surviving[number]
        plan = await self._planned(recorded)
        batch = await self._execution.batch(plan)
        notes = TermNotes([len(sample.loss_mask) for sample in batch.samples])
        sha256 = recorded.sha256 is not None
        executed = await self._execution.execute(plan, batch, sha256=sha256, like=recorded, notes=notes)
        return ExplainedStep(plan, batch, notes, self._compared(plan, recorded, executed))

    async def _planned(self, recorded: StepCompleted) -> BatchPlanned:
        """Returns the plan of an executed step. Raises LogLossError."""
        plan = await self._execution.plan(recorded.step)
        if plan is None or plan.batch != recorded.batch:
            raise LogLossError(
                f"the log has no plan of step {recorded.step}, but says that batch {recorded.batch} was executed",
                fix="run rftd verify on the log",
            )
        return plan

    def _compared(self, plan: BatchPlanned, recorded: StepCompleted, executed: Executed) -> Compared:
        """Returns the comparison of a step just executed, now the version of the weights."""
        self.version = plan.step
        return Compared(
            step=plan.step,
            stage=plan.stage,
            batch=plan.batch,
            items=len(plan.experiences) + len(plan.rows),
            tokens=executed.result.tokens,
            generation=recorded.generation,
            recorded=recorded.checksum,
            found=executed.checksum,
            recorded_sha256=recorded.sha256,
            found_sha256=executed.sha256,
            recorded_duration_s=recorded.duration_s,
        )

    async def _build_ahead(self, number: int) -> None:
        """Builds the batch of a later step; its errors are raised when that step is due."""
        try:
            if number in self.surviving:
                await self._execution.build_ahead(await self._execution.plan(number))
        except* RftdError:
            pass  # raised again when its step is due, after the comparison of the present one

    async def checksum(self, *, like: str) -> str:
        """Returns the checksum of the engine's weights, in the form of a recorded one."""
        return await self._execution.checksum(like=like)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the engine on the caller's thread, off the event loop."""
        return await self._execution.call(work)
