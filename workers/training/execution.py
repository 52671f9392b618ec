"""`Execution`: an engine that executes planned batches, whoever asks: live training, recovery, a fork or a replay.

It appends nothing and decides nothing; it reads plans and what they name from the log.
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
    StepResult,
    TrainBatch,
    TrainerEngine,
    WatchedEngine,
    checksum_like,
    sha256_like,
)
from rftd.workers.training.assembly import Assembly
from rftd.workers.training.history import Resumption

T = TypeVar("T")


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of executing one plan."""

    result: StepResult
    checksum: str
    """The checksum of the weights that it made."""
    sha256: str | None
    """The digest of the same weights by sha256, if it was asked for."""


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
        """`notes_traces`: what a batch consumes is traced."""
        self.engine = engine
        self._log = log
        self._state = state
        self._spec = spec
        self.thread = thread
        self._assembly = Assembly(log, spec, notes_traces=notes_traces)
        self._stage = -1
        """The stage that the engine is set up for."""
        self._ahead: tuple[UUID, TrainBatch] | None = None
        self._older: dict[int, int] = {}
        """The offsets of plans that the fold does not know any more, by step."""

    async def take_up(self, resumption: Resumption) -> int:
        """Loads what the resumption names, or the base model; returns its weight version.

        Raises DataError if the model's folder holds another base than the experiment began with.
        """
        path = self._spec.stages[0].model.path
        self._stage = -1  # the base model is set up for none, whatever was trained here before
        await self.call(lambda: self.engine.open(self._spec, path))
        base = self.base()
        # Compared before any checkpoint: LoRA and a frozen reference rest on the base, also where weights are loaded
        # over it.
        found = await self.checksum(like=base)
        if base and base != found:
            raise DataError(
                f"the model has checksum {found}; the experiment began with {base}",
                where=path,
                fix="put the model back that the experiment was started with",
            )
        checkpoint = resumption.checkpoint
        if checkpoint is None:
            return 0
        await self._load(Path(checkpoint.path), checkpoint.stage)
        return checkpoint.step

    async def load(self, folder: Path, stage: int) -> None:
        """Loads what an engine saved, to go on with it under this experiment's specification."""
        await self.call(lambda: self.engine.open(self._spec, self._spec.stages[0].model.path))
        await self._load(folder, stage)

    async def _load(self, folder: Path, stage: int) -> None:
        self._stage = stage
        await self.call(lambda: self.engine.load(folder, self._spec.stages[stage]))

    def base(self) -> str:
        """The checksum of the base model that the history began with; empty if that is not known here."""
        forked = self._state.spine.forked
        if forked is not None and forked.at_step == 0:
            return forked.checksum
        base = self._state.weights.base()
        return base.step_checksum if base is not None else ""

    async def plan(self, step: int) -> BatchPlanned | None:
        """The plan of a step, None if there is none; one that was executed before is read again from the log."""
        spine = self._state.spine
        if (plan := spine.plans.get(step)) is not None:
            return plan.event
        offset = await self._offset(step)
        if offset is None:
            return None
        partition = partition_of(topics.EXPERIMENTS, self._state.experiment)
        records = await self._log.read(partition, offset, max_records=1)
        if not records or records[0].offset != offset:
            raise LogLossError(
                f"the plan of step {step} is missing", where=f"{partition}@{offset}", fix="run rftd verify on the log"
            )
        return decode_as(records[0], BatchPlanned)

    async def _offset(self, step: int) -> int | None:
        """The offset of the step's plan; for steps long ago the spine is read once."""
        spine = self._state.spine
        offset = spine.plan_offsets.get(step)
        if offset is None and step in spine.batches.steps:
            if step not in self._older:
                self._older = await plan_offsets(self._log, self._state.experiment, first=step)
            offset = self._older.get(step)
        return offset

    async def batch(self, plan: BatchPlanned) -> TrainBatch:
        """The plan's batch, built now or ahead. Raises LogLossError if the log lacks what the plan names."""
        # By the batch's id, not its step: an abandoned batch has the same step as the one planned in its place.
        if self._ahead is None or self._ahead[0] != plan.batch:
            first_version = self._state.spine.first_versions.get(plan.stage)
            if first_version is None:
                raise LogLossError(
                    f"step {plan.step} belongs to stage {plan.stage}, which never started",
                    fix="run rftd verify on the log",
                )
            # One batch ahead at most: a second one would hold its arrays while nobody is going to need them soon.
            self._ahead = plan.batch, await self._assembly.batch(plan, first_version)
        return self._ahead[1]

    def traceparents(self, plan: BatchPlanned) -> Sequence[str]:
        """The headers of the traced experiences of a batch that was just built."""
        return self._assembly.traceparents.get(plan.batch) or ()

    async def build_ahead(self, plan: BatchPlanned | None) -> None:
        """Builds the batch of a plan while the one before it trains.

        What fails is raised when that batch is due: it must not take the step before it along.
        """
        try:
            if plan is not None and plan.stage in self._state.spine.first_versions:
                await self.batch(plan)
        except* RftdError:
            pass

    async def execute(
        self, plan: BatchPlanned, batch: TrainBatch, *, sha256: bool, like: StepCompleted | None = None
    ) -> Executed:
        """Executes one training step; a plan of another stage begins that stage. Digests have the forms of `like`.

        Raises NonFiniteLossError, with the batch named and the weights untouched, after too many that were skipped.
        """
        if plan.stage != self._stage:
            await self.call(lambda: self.engine.begin_stage(self._spec.stages[plan.stage]))
            # Only after begin_stage: if it raises, the next plan begins the stage again.
            self._stage = plan.stage

        def step() -> Executed:
            # One call for step and digests: between two of them another call could come onto the thread and change the
            # weights.
            result = self.engine.train(batch)
            return Executed(
                result=msgspec.structs.replace(result, metrics=batch.metrics | result.metrics),
                checksum=checksum_like(self.engine, like.checksum if like else ""),
                sha256=sha256_like(self.engine, (like.sha256 if like else "") or "") if sha256 else None,
            )

        try:
            return await self.call(step)
        except NonFiniteLossError as error:
            raise NonFiniteLossError(error.what, where=f"batch {plan.batch}", fix=error.fix) from error

    async def checksum(self, *, like: str = "") -> str:
        """The checksum of the engine's weights, to be compared with one that was recorded."""
        return await self.call(lambda: checksum_like(self.engine, like))

    async def watch(self) -> None:
        """Waits until the engine is closed. Raises RankError as soon as one of its processes is lost."""
        if isinstance(self.engine, WatchedEngine):
            await asyncio.to_thread(self.engine.watch)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the engine off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)
