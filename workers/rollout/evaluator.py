"""`Evaluator`: held-out rows, answered by a pinned weight version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, RolloutError, explain
from rftd.ops.ids import derive_each
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import untraced
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import EvalScored
from rftd.streams.events.task import EvalLeased
from rftd.streams.figures.eval_answers import packed
from rftd.streams.log.arrays import Array
from rftd.streams.spec.spec import StageSpec
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels, no_auxiliary_models
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.rollout.eval_engine import EvalEngine
from rftd.workers.rollout.eval_scores import ScoredRows
from rftd.workers.rollout.rollout_traces import end_cancelled, end_rollout, with_spans
from rftd.workers.rollout.rollouts import RolloutOutcome, RolloutPlaces, Rollouts
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.attempt import RolloutRequest
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import EngineFromThreads

ENGINES_TRIED: Final = 2
"""Engines that may fail under the rows of one lease before it is given up, and given out again."""


class Evaluator:
    """Answers eval leases, one after the other unless they are of the same weights."""

    def __init__(
        self,
        engine: EvalEngine,
        tokenizer: Tokenizer,
        *,
        places: Callable[[int], RolloutPlaces],
        clock: Clock,
        orphans: Orphans,
        log: Logger,
        endpoint: ModelEndpoint | None = None,
        auxiliary: AuxiliaryModels | None = None,
        reward_environ: Mapping[str, str] | None = None,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        """`places` gives the bound on the rows of a stage that run at a time; answers are kept in `artifacts`.

        `endpoint` serves the model to workflows that run other programs; `auxiliary` are the models to ask beside it;
        processes of rewards have the environment `reward_environ`.
        """
        self._reward_environ = reward_environ
        self._artifacts = artifacts
        self._auxiliary = auxiliary
        self._endpoint = endpoint
        self._engine = engine
        self._tokenizer = tokenizer
        self._places = places
        self._under_way = 0
        self._clock = clock
        self._orphans = orphans
        self._log = log
        self._rollouts: dict[tuple[int, int], tuple[RolloutEngine, Rollouts]] = {}
        """One for each stage and taskset, as long as its engine: a reward may keep a process of its own."""

    @property
    def running(self) -> bool:
        """True while a lease is answered, or its weights are waited for."""
        return self._under_way > 0

    async def score(self, lease: EvalLeased, stage: StageSpec, taskset: Taskset, weights: WeightsRef) -> EvalScored:
        """The rewards of the lease's rows; a row whose every attempt fails scores 0 and is counted.

        Rows that fail because the engine does are answered by another one. Raises RolloutError if that fails too, or if
        the weights cannot be loaded; WeightsElsewhereError if this machine cannot have them; WorkError if the engine
        failed and there will be no other in this process.
        """
        outcomes: dict[int, RolloutOutcome] = {}
        tries = max(1, taskset.spec.repeat_times)
        requests = with_spans(_requests(lease, tries), every=False)
        self._under_way += 1
        try:
            with untraced():  # a row is traced by itself, or not at all
                await self._answer(lease, stage, taskset, requests, outcomes, weights)
            for outcome in outcomes.values():
                end_rollout(outcome)
        finally:
            self._under_way -= 1
            end_cancelled(requests)
        results = [outcomes[request.number].result for request in requests]
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
        answered = ScoredRows(lease, taskset, results, tries=tries, tokenizer=self._tokenizer)
        return await self._with_texts(answered.scores(weights), answered)

    async def _with_texts(self, scored: EvalScored, answered: ScoredRows) -> EvalScored:
        """The scores with the texts of the answers by reference: bytes first, then the event."""
        if self._artifacts is None:
            return scored
        data = await asyncio.to_thread(packed, answered.texts())
        try:
            sha256 = await asyncio.to_thread(self._artifacts.put, data)
        except OSError as error:
            # What the rows are worth is known all the same, and a text to read is no reason to answer them again.
            self._log.warning("eval.answers_lost", version=scored.version, row_start=scored.row_start, why=str(error))
            return scored
        return msgspec.structs.replace(scored, answers=Array("u1", (len(data),), b"", sha256))

    async def _answer(
        self,
        lease: EvalLeased,
        stage: StageSpec,
        taskset: Taskset,
        requests: Sequence[RolloutRequest],
        outcomes: dict[int, RolloutOutcome],
        weights: WeightsRef,
    ) -> None:
        """Puts the outcome of each request into `outcomes`, by its number."""

        async def ended(some: Sequence[RolloutOutcome]) -> None:
            for outcome in some:
                outcomes[outcome.request.number] = outcome

        left = requests
        for _ in range(ENGINES_TRIED):
            async with self._engine.pinned(weights) as engine:
                await self._rollouts_of(lease, stage, engine).run(left, taskset, ended)
                left = [each for each in left if isinstance(outcomes[each.number].result, RolloutError)]
                # A row may fail by itself. Where the engine failed, nothing is known of what the row is worth.
                if not left or await self._engine.lives(weights):
                    return
        raise RolloutError(f"{ENGINES_TRIED} engines failed one after the other under the rows of an evaluation")

    async def close(self) -> None:
        """Closes what was opened for evaluations. Idempotent."""
        await self._engine.close()

    def _rollouts_of(self, lease: EvalLeased, stage: StageSpec, engine: RolloutEngine) -> Rollouts:
        key = (lease.stage, lease.taskset)
        known = self._rollouts.get(key)
        if known is not None and known[0] is engine:
            return known[1]
        asked = EngineFromThreads(engine) if stage.rollout.threads_each else engine
        runner = WorkflowRunner(
            stage.evals[lease.taskset],
            model=stage.model,
            engine=asked,
            tokenizer=self._tokenizer,
            endpoint=self._endpoint,
            auxiliary=partial(self._auxiliary.of, stage) if self._auxiliary else no_auxiliary_models,
            reward_environ=self._reward_environ,
        )
        rollouts = Rollouts(
            runner, stage.rollout, places=self._places(lease.stage), clock=self._clock, orphans=self._orphans
        )
        self._rollouts[key] = (engine, rollouts)
        return rollouts


def _requests(lease: EvalLeased, tries: int) -> list[RolloutRequest]:
    """The rollouts of the lease's rows, row after row, each of them `tries` times."""
    rows = range(lease.row_start, lease.row_end)
    requests: list[RolloutRequest] = []
    # The ids are the seeds too. The first answer to a row is the same, however many there are.
    for row, first in zip(rows, derive_each(lease.eval, "row", numbers=rows), strict=True):
        ids = [first, *derive_each(first, "try", numbers=range(1, tries))]
        requests += [
            RolloutRequest(number=row * tries + attempt, id=id, seed=id, row=row) for attempt, id in enumerate(ids)
        ]
    return requests
