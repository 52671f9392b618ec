"""`Rerun`: planned batches executed again from the log, compared with what was recorded; nothing is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import UUID

import msgspec

from rftd.ops.errors import DataError, LogLossError, NotFoundError, RftdError
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.log.log import EventLog
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.training.environment import Drift, drift
from rftd.workers.training.execution import Execution
from rftd.workers.training.history import Resumption, resume_from
from rftd.workers.training.record import TrainingRecord

T = TypeVar("T")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One step as it was recorded, and as executing its plan again made it."""

    step: int
    stage: int
    batch: UUID
    items: int
    tokens: int
    generation: int
    """The generation whose execution it is compared with: the one that the present weights contain."""
    recorded: str
    """The checksum of the weights as it was recorded."""
    found: str
    recorded_sha256: str | None
    found_sha256: str | None
    """The sha256 that was found; None where none was recorded."""
    recorded_duration_s: float

    @property
    def equal(self) -> bool:
        """True if every digest that was recorded was found again."""
        return self.recorded == self.found and self.recorded_sha256 == self.found_sha256


class Rerun:
    """The training history of one experiment on an engine of the caller, who closes it: `take_up`, then step by
    step."""

    def __init__(self, log: EventLog, record: TrainingRecord, engine: TrainerEngine, *, thread: Executor) -> None:
        """`record` was read to where the rerun shall see; engine calls happen on `thread`."""
        spec = record.state.spine.spec
        if spec is None:
            raise LogLossError("the log has lost what was submitted", fix="run rftd verify on the log")
        self.record = record
        self.surviving = record.surviving()
        self.version = -1
        """The weight version that the engine holds; -1 before `take_up`."""
        self._log = log
        self._thread = thread
        self._execution = Execution(log, record.state, spec, engine, thread=thread)

    @property
    def last(self) -> int:
        """The last step that was ever executed."""
        return max(self.surviving, default=0)

    async def take_up(self, *, at_most: int) -> Resumption:
        """Loads the newest good checkpoint of the surviving history at or below a weight version; 0 means the base.

        A fork without one takes up its parent's history, and executes it up to the version that both share. Raises
        DataError if the model's folder holds another base than was recorded.
        """
        forked = self.record.state.spine.forked
        shared = forked.at_step if forked is not None else 0

        def accept(checkpoint: CheckpointCommitted) -> bool:
            # A fork's first checkpoint is of the shared version, which its parent executed: no step of its own made it.
            if checkpoint.step == shared > 0:
                return shared <= at_most
            done = self.surviving.get(checkpoint.step)
            return checkpoint.step <= at_most and done is not None and done.checksum == checkpoint.checksum

        resumption = await self._resumed(accept)
        if resumption.checkpoint is None and shared:
            resumption = await self._inherit(shared, at_most=min(at_most, shared))
        return resumption

    def drift(self, here: Mapping[str, str], last: int) -> tuple[Drift, ...]:
        """The differences from where the steps up to `last` were executed; each once, whatever the generations."""
        used = {done.generation for step, done in self.surviving.items() if self.version < step <= last}
        found: dict[tuple[str, str], Drift] = {}
        for generation in sorted(used, reverse=True):
            started = self.record.generations.get(generation)
            for each in drift(generation, started.environment if started else {}, here):
                found.setdefault((each.name, each.recorded), each)
        return tuple(found[key] for key in sorted(found))

    async def _resumed(self, accept: Callable[[CheckpointCommitted], bool]) -> Resumption:
        """Loads the newest good checkpoint that can be loaded, or the base."""
        passed: dict[str, str] = {}
        while True:
            resumption = await asyncio.to_thread(
                resume_from, self.record.state, lambda each: each.path not in passed and accept(each)
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
        """The parent's history up to the shared version, then the weights and optimizer under this specification."""
        assert self.record.parent is not None and self.record.state.spine.forked is not None
        parent = Rerun(self._log, self.record.parent, self._execution.engine, thread=self._thread)
        resumption = await parent.take_up(at_most=at_most)
        await parent.reach(shared)
        engine = self._execution.engine
        stage = self.record.state.spine.forked.stage
        # Through a folder, as a real fork goes: what an engine carries over beyond what it saves would be lost there
        # too.
        with TemporaryDirectory(prefix="rftd-rerun-") as folder:
            await self.call(lambda: engine.save(Path(folder), hf=False))
            await self._execution.load(Path(folder), stage)
        self.version = shared
        return resumption

    async def reach(self, version: int) -> None:
        """Executes steps until the engine holds this weight version."""
        while self.version < version:
            await self.step(self.version + 1)

    async def step(self, number: int) -> Compared:
        """Executes the plan of the next step again.

        Raises NotFoundError for a step that was never executed, LogLossError if its plan or what it names is not in
        the log, NonFiniteLossError as in training.
        """
        assert number == self.version + 1, (number, self.version)
        recorded = self.surviving.get(number)
        if recorded is None:
            raise NotFoundError(f"step {number} was never executed; the last one is {self.last}")
        plan = await self._execution.plan(number)
        if plan is None or plan.batch != recorded.batch:
            raise LogLossError(
                f"the log has no plan of step {number}, but says that batch {recorded.batch} was executed",
                fix="run rftd verify on the log",
            )
        batch = await self._execution.batch(plan)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._build_ahead(number + 1))
            executed = await self._execution.execute(plan, batch, sha256=recorded.sha256 is not None, like=recorded)
        self.version = number
        return Compared(
            step=number,
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
        try:
            if number in self.surviving:
                await self._execution.build_ahead(await self._execution.plan(number))
        except* RftdError:
            pass  # raised again when its step is due, after the present one was compared

    async def checksum(self, *, like: str) -> str:
        """The checksum of the engine's weights, to be compared with one that was recorded."""
        return await self._execution.checksum(like=like)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the engine off the loop."""
        return await self._execution.call(work)
