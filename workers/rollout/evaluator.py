"""The evaluator: held-out rows, answered by a pinned weight version on an engine of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.ids import derive
from rftd.streams.arrays import Array
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.task import EvalLeased
from rftd.streams.spec import RolloutSpec, StageSpec
from rftd.workers.rollout.engine import RolloutEngine
from rftd.workers.rollout.orphans import Orphans
from rftd.workers.rollout.threads import EngineFromThreads, on_own_thread
from rftd.workers.rollout.workflows.runner import WorkflowRunner
from rftd.workers.tasksets.taskset import Taskset
from rftd.workers.tasksets.tokenizer import Tokenizer
from rftd.workers.weights.channel import WeightsRef

OpenEngine = Callable[[], Awaitable[RolloutEngine]]


class Evaluator:
    """Answers one eval lease at a time. Its engine is opened at the first and stays."""

    def __init__(
        self, open_engine: OpenEngine, tokenizer: Tokenizer, *, at_once: int, clock: Clock, orphans: Orphans
    ) -> None:
        self._open_engine = open_engine
        self._tokenizer = tokenizer
        self._places = asyncio.Semaphore(at_once)
        self._engine: RolloutEngine | None = None
        self._one_lease = asyncio.Lock()
        self._clock = clock
        self._orphans = orphans

    async def score(self, lease: EvalLeased, stage: StageSpec, taskset: Taskset, weights: WeightsRef) -> EvalScored:
        """The rewards of the lease's rows; a row whose workflow or reward fails scores 0 and is counted.

        Raises RolloutError if the weights cannot be loaded.
        """
        async with self._one_lease:
            engine = await self._ready(weights)
            spec = stage.evals[lease.taskset]
            asked = EngineFromThreads(engine) if stage.rollout.threads_each else engine
            runner = WorkflowRunner(spec, model=stage.model, engine=asked, tokenizer=self._tokenizer)
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._row(runner, lease.eval, taskset, row, stage.rollout))
                    for row in range(lease.row_start, lease.row_end)
                ]
            results = [task.result() for task in running]
        failed = sum(1 for reward, _ in results if math.isnan(reward))
        return EvalScored(
            eval=lease.eval,
            lease=lease.lease,
            stage=lease.stage,
            taskset=lease.taskset,
            row_start=lease.row_start,
            version=weights.version,
            generation=weights.generation,
            rewards=Array.of([0.0 if math.isnan(reward) else reward for reward, _ in results], "f4"),
            tokens=Array.of([tokens for _, tokens in results], "u4"),
            metrics={"failed_rows": float(failed)},
        )

    async def close(self) -> None:
        """Closes the engine. Idempotent."""
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    async def _ready(self, weights: WeightsRef) -> RolloutEngine:
        if self._engine is None:
            self._engine = await self._open_engine()
        if self._engine.version != (weights.version, weights.generation):
            await self._engine.load_weights(weights)
        return self._engine

    async def _row(
        self, runner: WorkflowRunner, eval: UUID, taskset: Taskset, row: int, spec: RolloutSpec
    ) -> tuple[float, int]:
        async with self._places:
            try:
                task = taskset.task(row)
                work = partial(runner.run, task, derive(eval, "row", row))
                result = await self._orphans.bounded(
                    on_own_thread(work) if spec.threads_each else work(), spec.max_timeout_s, where=task.where
                )
            except RftdError:
                return math.nan, 0
        return result.reward, len(result.tokens) - result.prompt_tokens
