"""`Evaluator`: held-out rows of eval leases, each answered by exactly one pinned weight version."""

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

MAX_ENGINES_PER_LEASE: Final = 2
"""Maximum number of engines used for one lease: if the last one fails too, RolloutError is raised and the lease is
repeated.
"""


class Evaluator:
    """Answers leases of held-out rows, several at once only if they evaluate the same weights."""

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
        confined: bool = False,
    ) -> None:
        """`places` returns the slots limiting the concurrent rows of a stage, given its index; `artifacts` stores texts
        of answers.

        `endpoint` serves the model to workflows that run other programs; `auxiliary` are further models for workflows;
        reward processes get the environment `reward_environ`; with `confined`, sources of rewards run in a sandbox.
        """
        self._confined = confined
        self._reward_environ = reward_environ
        self._artifacts = artifacts
        self._auxiliary = auxiliary
        self._endpoint = endpoint
        self._engine = engine
        self._tokenizer = tokenizer
        self._places = places
        self._under_way = 0
        """Number of leases being answered."""
        self._clock = clock
        self._orphans = orphans
        self._log = log
        self._rollouts: dict[tuple[int, int], tuple[RolloutEngine, Rollouts]] = {}
        """Runner of rollouts by (stage, taskset) with its engine; replaced with the engine, because a reward may own a
        process.
        """

    @property
    def running(self) -> bool:
        """True while a lease is being answered, or waits for weights."""
        return self._under_way > 0

    async def score(self, lease: EvalLeased, stage: StageSpec, taskset: Taskset, weights: WeightsRef) -> EvalScored:
        """Answers and scores the rows of a lease. A row scores 0, and counts as failed, if each of its attempts fails.

        Rows interrupted by a failing engine are answered by a new one. Raises RolloutError if that one fails too, or if
        the weights cannot be loaded; WeightsElsewhereError if this machine cannot have the weights; WorkError if the
        engine failed and the process cannot open another one.
        """
        outcomes: dict[int, RolloutOutcome] = {}
        tries = max(1, taskset.spec.repeat_times)
        requests = with_spans(_requests(lease, tries), every=False)
        self._under_way += 1
        try:
            with untraced():  # a row has a span of its own, or none
                await self._answer(lease, stage, taskset, requests, outcomes, weights)
            for outcome in outcomes.values():
                end_rollout(outcome)
        finally:
            self._under_way -= 1
            end_cancelled(requests)
        answers = [outcomes[request.number].result for request in requests]
        failures = [answer for answer in answers if isinstance(answer, RftdError)]
        if failures:
            # One line for all failures: the score has room for a number, not for reasons.
            self._log.warning(
                "eval.rows_failed",
                version=weights.version,
                rows=len(failures),
                code=failures[0].code,
                first=explain(failures[0]),
            )
        scored_rows = ScoredRows(lease, taskset, answers, tries=tries, tokenizer=self._tokenizer)
        return await self._with_texts(scored_rows.scores(weights), scored_rows)

    async def _with_texts(self, scored: EvalScored, scored_rows: ScoredRows) -> EvalScored:
        """Returns the scores with the texts of the answers by reference: bytes first, then the event."""
        if self._artifacts is None:
            return scored
        texts = await asyncio.to_thread(packed, scored_rows.texts())
        try:
            sha256 = await asyncio.to_thread(self._artifacts.put, texts)
        except OSError as error:
            # The scores are known all the same, and a missing text is no reason to answer the rows again.
            self._log.warning("eval.answers_lost", version=scored.version, row_start=scored.row_start, why=str(error))
            return scored
        return msgspec.structs.replace(scored, answers=Array("u1", (len(texts),), b"", sha256))

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

        async def ended(ended_outcomes: Sequence[RolloutOutcome]) -> None:
            for outcome in ended_outcomes:
                outcomes[outcome.request.number] = outcome

        open_requests = requests
        for _ in range(MAX_ENGINES_PER_LEASE):
            async with self._engine.pinned(weights) as engine:
                await self._rollouts_of(lease, stage, engine).run(open_requests, taskset, ended)
                open_requests = [
                    request for request in open_requests if isinstance(outcomes[request.number].result, RolloutError)
                ]
                # A row may fail by itself. After a failure of the engine, nothing is known about the row's score.
                if not open_requests or await self._engine.lives(weights):
                    return
        raise RolloutError(
            f"{MAX_ENGINES_PER_LEASE} engines failed one after the other under the rows of an evaluation"
        )

    async def close(self) -> None:
        """Closes the engines opened for evaluations. Idempotent."""
        await self._engine.close()

    def _rollouts_of(self, lease: EvalLeased, stage: StageSpec, engine: RolloutEngine) -> Rollouts:
        """Returns the rollouts of the lease's stage and taskset on this engine, made once."""
        key = (lease.stage, lease.taskset)
        opened = self._rollouts.get(key)
        if opened is not None and opened[0] is engine:
            return opened[1]
        called_engine = EngineFromThreads(engine) if stage.rollout.threads_each else engine
        runner = WorkflowRunner(
            stage.evals[lease.taskset],
            model=stage.model,
            engine=called_engine,
            tokenizer=self._tokenizer,
            endpoint=self._endpoint,
            auxiliary=partial(self._auxiliary.of, stage) if self._auxiliary else no_auxiliary_models,
            reward_environ=self._reward_environ,
            sources=stage.sources,
            confined=self._confined,
            evaluates=True,
        )
        rollouts = Rollouts(
            runner, stage.rollout, places=self._places(lease.stage), clock=self._clock, orphans=self._orphans
        )
        self._rollouts[key] = (engine, rollouts)
        return rollouts


def _requests(lease: EvalLeased, tries: int) -> list[RolloutRequest]:
    """Returns `tries` rollout requests for each row of the lease, row by row, with reproducible ids and seeds."""
    rows = range(lease.row_start, lease.row_end)
    requests: list[RolloutRequest] = []
    # The ids are the seeds too. The first answer to a row is the same for any number of tries.
    for row, first in zip(rows, derive_each(lease.eval, "row", numbers=rows), strict=True):
        ids = [first, *derive_each(first, "try", numbers=range(1, tries))]
        requests += [
            RolloutRequest(number=row * tries + attempt, id=id, seed=id, row=row) for attempt, id in enumerate(ids)
        ]
    return requests
