"""`Evaluator`: held-out rows, answered by a pinned weight version on an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, RolloutError, WeightsElsewhereError
from rftd.ops.ids import derive_each
from rftd.ops.logs import Logger
from rftd.streams.arrays import Array
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.task import EvalLeased
from rftd.streams.spec import StageSpec
from rftd.workers.membership import explain
from rftd.workers.rollout.endpoint.server import ModelEndpoint
from rftd.workers.rollout.engine import RolloutEngine
from rftd.workers.rollout.orphans import Orphans
from rftd.workers.rollout.rollouts import RolloutOutcome, RolloutPlaces, Rollouts
from rftd.workers.rollout.threads import EngineFromThreads
from rftd.workers.rollout.workflows.attempt import RolloutRequest
from rftd.workers.rollout.workflows.result import RolloutResult
from rftd.workers.rollout.workflows.runner import WorkflowRunner
from rftd.workers.tasksets.taskset import Taskset
from rftd.workers.tasksets.tokenizer import Tokenizer
from rftd.workers.weights.channel import WeightsRef

OpenEngine = Callable[[], Awaitable[RolloutEngine]]


class Evaluator:
    """Answers one eval lease at a time. Its engine is opened at the first and stays."""

    def __init__(
        self,
        open_engine: OpenEngine,
        tokenizer: Tokenizer,
        *,
        at_once: int,
        clock: Clock,
        orphans: Orphans,
        log: Logger,
        endpoint: ModelEndpoint | None = None,
    ) -> None:
        """`at_once` rows run at a time; `endpoint` serves the model to workflows that run other programs."""
        self._endpoint = endpoint
        self._open_engine = open_engine
        self._tokenizer = tokenizer
        self._places = RolloutPlaces(at_once)
        self._engine: RolloutEngine | None = None
        # One at a time, because the rows of a lease are pinned to its weights and the engine holds one version.
        self._one_lease = asyncio.Lock()
        self._clock = clock
        self._orphans = orphans
        self._log = log
        self._rollouts: dict[tuple[int, int], Rollouts] = {}
        """One for each stage and taskset, for good: a reward may keep a process of its own."""

    @property
    def running(self) -> bool:
        """True while a lease is answered, or its weights are loaded."""
        return self._one_lease.locked()

    async def score(self, lease: EvalLeased, stage: StageSpec, taskset: Taskset, weights: WeightsRef) -> EvalScored:
        """The rewards of the lease's rows; a row whose every attempt fails scores 0 and is counted.

        Raises RolloutError if the weights cannot be loaded, WeightsElsewhereError if this machine cannot have them.
        """
        outcomes: dict[int, RolloutOutcome] = {}

        async def ended(some: Sequence[RolloutOutcome]) -> None:
            for outcome in some:
                outcomes[outcome.request.number] = outcome

        rows = range(lease.row_start, lease.row_end)
        # The ids are the seeds too: whatever version is evaluated, a row is drawn from the same random numbers.
        ids = derive_each(lease.eval, "row", numbers=rows)
        requests = [RolloutRequest(number=row, id=id, seed=id, row=row) for row, id in zip(rows, ids, strict=True)]
        async with self._one_lease:
            engine = await self._ready(weights)
            await self._rollouts_of(lease, stage, engine).run(requests, taskset, ended)
        results = [outcomes[row].result for row in rows]
        failures = [result for result in results if isinstance(result, RftdError)]
        if failures:
            # One line for all of them: the score has room for their number, not for their reasons.
            self._log.warning(
                "eval.rows_failed",
                version=weights.version,
                rows=len(failures),
                code=failures[0].code,
                first=explain(failures[0]),
            )
        return EvalScored(
            eval=lease.eval,
            lease=lease.lease,
            stage=lease.stage,
            taskset=lease.taskset,
            row_start=lease.row_start,
            version=weights.version,
            generation=weights.generation,
            rewards=Array.of([each.reward if isinstance(each, RolloutResult) else 0.0 for each in results], "f4"),
            tokens=Array.of(
                [len(each.tokens) - each.prompt_tokens if isinstance(each, RolloutResult) else 0 for each in results],
                "u4",
            ),
            metrics={"failed_rows": float(len(failures))},
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
            try:
                await self._engine.load_weights(weights)
            except (WeightsElsewhereError, RolloutError):
                raise
            except RftdError as error:
                # As in the explorer: weights that cannot be loaded now may be loaded later, or given out elsewhere.
                raise RolloutError(error.what, where=error.where, fix=error.fix) from error
        return self._engine

    def _rollouts_of(self, lease: EvalLeased, stage: StageSpec, engine: RolloutEngine) -> Rollouts:
        key = (lease.stage, lease.taskset)
        if key not in self._rollouts:
            asked = EngineFromThreads(engine) if stage.rollout.threads_each else engine
            runner = WorkflowRunner(
                stage.evals[lease.taskset],
                model=stage.model,
                engine=asked,
                tokenizer=self._tokenizer,
                endpoint=self._endpoint,
            )
            self._rollouts[key] = Rollouts(
                runner, stage.rollout, places=self._places, clock=self._clock, orphans=self._orphans
            )
        return self._rollouts[key]
