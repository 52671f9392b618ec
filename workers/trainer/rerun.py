"""`Rerun`: planned batches executed again from the log, compared with what was recorded; nothing is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TypeVar
from uuid import UUID

import msgspec

from rftd.ops.errors import LogLossError, NotFoundError, RftdError
from rftd.streams.log import EventLog
from rftd.workers.trainer.engine import TrainerEngine
from rftd.workers.trainer.environment import Drift, drift
from rftd.workers.trainer.execution import Execution
from rftd.workers.trainer.history import Resumption, resume_from
from rftd.workers.trainer.record import TrainingRecord

T = TypeVar("T")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One step: what was recorded of it, and what executing its plan again gave."""

    step: int
    stage: int
    batch: UUID
    items: int
    tokens: int
    generation: int
    """Whose execution it is compared with: the one that the present weights contain."""
    recorded: str
    """Checksum of the weights."""
    found: str
    recorded_sha256: str | None
    found_sha256: str | None
    """None where none was recorded."""
    recorded_duration_s: float

    @property
    def equal(self) -> bool:
        """True if every digest that was recorded was found again."""
        return self.recorded == self.found and self.recorded_sha256 == self.found_sha256


class Rerun:
    """One experiment's training history on an engine of the caller, who closes it: `take_up`, then step by step."""

    def __init__(self, log: EventLog, record: TrainingRecord, engine: TrainerEngine, *, thread: Executor) -> None:
        """`record` was read to where the rerun shall see; engine calls happen on `thread`."""
        spec = record.state.spine.spec
        if spec is None:
            raise LogLossError("the log has lost what was submitted", fix="run rftd verify on the log")
        self.record = record
        self.surviving = record.surviving()
        self.version = -1
        """The weight version that the engine holds; -1 before `take_up`."""
        self._execution = Execution(log, record.state, spec, engine, thread=thread)

    @property
    def last(self) -> int:
        """The last step that was ever executed."""
        return max(self.surviving, default=0)

    async def take_up(self, *, at_most: int) -> Resumption:
        """Loads the newest good checkpoint of the surviving history at or below a weight version; 0 means the base.

        Raises DataError if the model's folder holds another base than was recorded.
        """

        def accept(checkpoint_step: int, checksum: str) -> bool:
            done = self.surviving.get(checkpoint_step)
            return checkpoint_step <= at_most and done is not None and done.checksum == checksum

        resumption = await asyncio.to_thread(
            resume_from, self.record.state, lambda checkpoint: accept(checkpoint.step, checkpoint.checksum)
        )
        self.version = await self._execution.take_up(resumption)
        return resumption

    def drift(self, here: Mapping[str, str], last: int) -> tuple[Drift, ...]:
        """What is not as it was where the steps up to `last` were executed; of several generations each thing once."""
        used = {done.generation for step, done in self.surviving.items() if self.version < step <= last}
        found: dict[tuple[str, str], Drift] = {}
        for generation in sorted(used, reverse=True):
            started = self.record.generations.get(generation)
            for each in drift(generation, started.environment if started else {}, here):
                found.setdefault((each.name, each.recorded), each)
        return tuple(found[key] for key in sorted(found))

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
            executed = await self._execution.execute(plan, batch, sha256=recorded.sha256 is not None)
        self.version = number
        return Compared(
            step=number,
            stage=plan.stage,
            batch=plan.batch,
            items=len(batch.samples),
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

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the engine off the loop."""
        return await self._execution.call(work)
