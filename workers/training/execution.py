"""`Execution`: an engine executing planned batches, for live training, recovery, forks and replays.

It appends nothing and decides nothing; plans and planned records are read from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec

from rftd.ops.errors import DataError, LogLossError, NonFiniteLossError, RftdError
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.log import EventLog
from rftd.streams.log.shared_history import plan_offsets
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.learning.engine import (
    ExplainingEngine,
    StepResult,
    TrainBatch,
    TrainerEngine,
    WatchedEngine,
    checksum_like,
    sha256_like,
)
from rftd.workers.learning.term_notes import TermNotes
from rftd.workers.training.assembly import Assembly
from rftd.workers.training.history import Resumption

T = TypeVar("T")


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of executing one plan, with the digests of the new weights."""

    result: StepResult
    """Figures of the step, with the metrics of the batch."""
    checksum: str
    """Checksum of the resulting weights."""
    sha256: str | None
    """The sha256 of the resulting weights; None if not requested."""


class Execution:
    """The training of one experiment on one engine. All engine calls happen on `thread`, one at a time."""

    def __init__(
        self,
        log: EventLog,
        state: RunState,
        spec: ExperimentSpec,
        engine: TrainerEngine,
        *,
        thread: Executor,
        notes_traces: bool = False,
    ) -> None:
        """Executes plans of the experiment in `state` and `spec` on `engine`; with `notes_traces`, trace headers of a
        batch's experiences are collected.
        """
        self.engine = engine
        self._log = log
        self._state = state
        self._spec = spec
        self.thread = thread
        self._assembly = Assembly(log, spec, notes_traces=notes_traces)
        self._stage = -1
        """Index of the stage for which the engine is set up."""
        self._built_batch: tuple[UUID, TrainBatch] | None = None
        """Batch built last, with the id of its plan."""
        self._offsets_of_old_plans: dict[int, int] = {}
        """Offsets on the spine of plans no longer in the fold, by step."""

    async def take_up(self, resumption: Resumption) -> int:
        """Loads the checkpoint of a resumption, or the base model; returns the loaded weight version.

        Raises DataError if the model's folder holds another base than at the experiment's start.
        """
        path = self._spec.stages[0].model.path
        self._stage = -1  # the base model is set up for no stage, whatever was trained here before
        await self.call(lambda: self.engine.open(self._spec, path))
        base = self.base()
        # Compared before any checkpoint: LoRA and a frozen reference rest on the base, even if weights are loaded over
        # it.
        present_checksum = await self.checksum(like=base)
        if base and base != present_checksum:
            raise DataError(
                f"the model has checksum {present_checksum}; the experiment began with {base}",
                where=path,
                fix="restore the model with which the experiment was started",
            )
        checkpoint = resumption.checkpoint
        if checkpoint is None:
            return 0
        await self._load_checkpoint(Path(checkpoint.path), checkpoint.stage)
        return checkpoint.step

    async def load(self, folder: Path, stage: int) -> None:
        """Loads weights saved by an engine in `folder`, to continue training under this experiment's specification."""
        await self.call(lambda: self.engine.open(self._spec, self._spec.stages[0].model.path))
        await self._load_checkpoint(folder, stage)

    async def _load_checkpoint(self, folder: Path, stage: int) -> None:
        """Loads a checkpoint, and sets the engine up for the stage."""
        self._stage = stage
        await self.call(lambda: self.engine.load(folder, self._spec.stages[stage]))

    def base(self) -> str:
        """Returns the checksum of the history's base model; empty if no event here records it."""
        forked = self._state.spine.forked
        if forked is not None and forked.at_step == 0:
            return forked.checksum
        base = self._state.weights.base()
        return base.step_checksum if base is not None else ""

    async def plan(self, step: int) -> BatchPlanned | None:
        """Returns the plan of a step, from the log if it is no longer in the fold; None without one."""
        spine = self._state.spine
        if (plan := spine.plans.get(step)) is not None:
            return plan.event
        offset = await self._plan_offset(step)
        if offset is None:
            return None
        partition = partition_of(topics.EXPERIMENTS, self._state.experiment)
        records = await self._log.read(partition, offset, max_records=1)
        if not records or records[0].offset != offset:
            raise LogLossError(
                f"the plan of step {step} is missing", where=f"{partition}@{offset}", fix="run rftd verify on the log"
            )
        return decode_as(records[0], BatchPlanned)

    async def _plan_offset(self, step: int) -> int | None:
        """Returns the offset of a step's plan on the spine; for old steps the spine is read once."""
        spine = self._state.spine
        offset = spine.plan_offsets.get(step)
        if offset is None and step in spine.batches.steps:
            if step not in self._offsets_of_old_plans:
                self._offsets_of_old_plans = await plan_offsets(self._log, self._state.experiment, first=step)
            offset = self._offsets_of_old_plans.get(step)
        return offset

    async def batch(self, plan: BatchPlanned) -> TrainBatch:
        """Returns the batch of a plan, built now or earlier by `build_ahead`. Raises LogLossError if a planned record
        is missing.
        """
        # By the batch's id, not the step: an abandoned batch shares the step with the replacement.
        if self._built_batch is None or self._built_batch[0] != plan.batch:
            first_version = self._state.spine.first_versions.get(plan.stage)
            if first_version is None:
                raise LogLossError(
                    f"step {plan.step} belongs to stage {plan.stage}, which never started",
                    fix="run rftd verify on the log",
                )
            # One batch ahead at most: a second one would hold arrays long before their use.
            self._built_batch = plan.batch, await self._assembly.batch(plan, first_version)
        return self._built_batch[1]

    def traceparents(self, plan: BatchPlanned) -> Sequence[str]:
        """Returns the trace headers of the traced experiences of a batch just built."""
        return self._assembly.traceparents.get(plan.batch) or ()

    async def build_ahead(self, plan: BatchPlanned | None) -> None:
        """Starts building the batch of a plan while the previous step trains; None does nothing.

        An error is raised by `batch` when this batch is due, and not in the previous step.
        """
        try:
            if plan is not None and plan.stage in self._state.spine.first_versions:
                await self.batch(plan)
        except* RftdError:
            pass

    async def execute(
        self,
        plan: BatchPlanned,
        batch: TrainBatch,
        *,
        sha256: bool,
        like: StepCompleted | None = None,
        notes: TermNotes | None = None,
    ) -> Executed:
        """Trains one step, first setting the engine up if the plan begins another stage. Digests have the forms of
        `like`. With `notes`, an `ExplainingEngine` fills them.

        `sha256` also requests a sha256 of the weights. Raises NonFiniteLossError after too many skipped steps, naming
        the batch; the weights are then unchanged.
        """
        if plan.stage != self._stage:
            await self.call(lambda: self.engine.begin_stage(self._spec.stages[plan.stage]))
            # Only after begin_stage: after an exception, the next plan begins the stage again.
            self._stage = plan.stage

        def step() -> Executed:
            # One call for step and digests: between two calls another one could reach the thread and change the
            # weights.
            if notes is None:
                step_result = self.engine.train(batch)
            else:
                assert isinstance(self.engine, ExplainingEngine), "an engine without terms"
                step_result = self.engine.train_noting(batch, notes)
            return Executed(
                result=msgspec.structs.replace(step_result, metrics=batch.metrics | step_result.metrics),
                checksum=checksum_like(self.engine, like.checksum if like else ""),
                sha256=sha256_like(self.engine, (like.sha256 if like else "") or "") if sha256 else None,
            )

        try:
            return await self.call(step)
        except NonFiniteLossError as error:
            raise NonFiniteLossError(error.what, where=f"batch {plan.batch}", fix=error.fix) from error

    async def checksum(self, *, like: str = "") -> str:
        """Returns the checksum of the engine's weights, in the form of the recorded checksum `like`."""
        return await self.call(lambda: checksum_like(self.engine, like))

    async def watch(self) -> None:
        """Waits until the engine is closed. Raises RankError as soon as a process of the engine is lost."""
        if isinstance(self.engine, WatchedEngine):
            await asyncio.to_thread(self.engine.watch)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the engine on the engine's thread, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)
