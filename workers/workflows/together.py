"""`Together`: the rollouts of one task as one piece of work, where the workflow asks once.

Each has the ids, the seed and the result that it would have alone; it is only cheaper: the prompt is made once, and one
asyncio task waits for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias
from uuid import UUID

from rftd.ops.errors import RolloutError
from rftd.streams.spec import ModelSpec, SamplingSpec
from rftd.workers.chat.model import Model
from rftd.workers.chat.response import Response
from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.rewards.scorer import Scorer
from rftd.workers.rollout.engine import Answers, Generation, GenerationRequest, GroupEngine
from rftd.workers.tasksets.task import Task
from rftd.workers.workflows.result import RolloutResult, named
from rftd.workers.workflows.simple import finish
from rftd.workers.workflows.workflow import SingleTurn

Ended: TypeAlias = tuple[UUID, RolloutResult | RolloutError]
"""A rollout's id, and its result or what went wrong."""


class Together:
    """One task's rollouts under one workflow and one reward; made by `WorkflowRunner.together`."""

    def __init__(
        self,
        task: Task,
        workflow: SingleTurn,
        scorer: Scorer,
        *,
        engine: GroupEngine,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        sampling: SamplingSpec,
    ) -> None:
        self._task = task
        self._workflow = workflow
        self._scorer = scorer
        self._engine = engine
        self._tokenizer = tokenizer
        self._spec = spec
        self._sampling = sampling

    @asynccontextmanager
    async def asked(self, seeds: Mapping[UUID, UUID]) -> AsyncIterator[Attempt]:
        """One attempt at each of the rollouts `seeds`, by id, with what their sampling derives from.

        Takes as long as generating takes: the caller bounds it. Leaving the context gives up what has not ended.
        """
        attempt = Attempt(self._task, self._scorer, self._spec.max_model_len)
        try:
            requests = attempt.ask(self._models(seeds))
        except Exception as error:
            attempt.fail(seeds, named(error, self._task))
            requests = []
        if not requests:
            yield attempt
            return
        async with AsyncExitStack() as stack:
            try:
                attempt.answers = await stack.enter_async_context(self._engine.generate_each(requests))
            except RolloutError as error:  # one that can never run, or an engine that failed
                attempt.fail(attempt.waiting, named(error, self._task))
            yield attempt

    def _models(self, seeds: Mapping[UUID, UUID]) -> Iterator[tuple[UUID, Model, GenerationRequest | Response]]:
        """What each rollout asks; the prompt is made once."""
        prompt: list[int] | None = None
        for id, seed in seeds.items():
            model = Model(
                self._engine, self._tokenizer, spec=self._spec, sampling=self._sampling, rollout=id, seed=seed
            )
            if prompt is None:
                prompt = self._workflow.prompt(self._task, model, self._scorer)
            yield id, model, model.ask(prompt)


class Attempt:
    """Rollouts under way together."""

    def __init__(self, task: Task, scorer: Scorer, max_model_len: int) -> None:
        self.answers: Answers | None = None
        self._task = task
        self._scorer = scorer
        self._max_model_len = max_model_len
        self._asked: list[tuple[UUID, Model, GenerationRequest]] = []
        self._told: list[tuple[UUID, Response]] = []
        self._failed: list[Ended] = []

    @property
    def where(self) -> str:
        """The task's row."""
        return self._task.where

    @property
    def waiting(self) -> list[UUID]:
        """Rollouts that the engine is asked for."""
        return [id for id, _, _ in self._asked]

    def ask(self, models: Iterator[tuple[UUID, Model, GenerationRequest | Response]]) -> list[GenerationRequest]:
        """Takes in what each rollout asks; the requests for the engine."""
        for id, model, asked in models:
            if isinstance(asked, Response):
                self._told.append((id, asked))
            else:
                self._asked.append((id, model, asked))
        return [request for _, _, request in self._asked]

    def fail(self, rollouts: Iterable[UUID], error: RolloutError) -> None:
        """These have ended with the error, and nothing else is asked."""
        self._failed += [(id, error) for id in rollouts]
        self._told = []

    async def some(self) -> list[Ended]:
        """Those that have ended since the last call; none once all were given."""
        ended, self._failed = self._failed, []
        told, self._told = self._told, []
        for id, response in told:
            ended.append((id, await self._scored(response)))
        if ended or self.answers is None:
            return ended
        for number, answer in await self.answers.some():
            id, model, request = self._asked[number]
            ended.append((id, await self._result(model, request, answer)))
        return ended

    async def _result(
        self, model: Model, request: GenerationRequest, answer: Generation | RolloutError
    ) -> RolloutResult | RolloutError:
        if isinstance(answer, RolloutError):
            return named(answer, self._task)
        try:
            response = model.answer(request, answer)
        except Exception as error:
            return named(error, self._task)
        return await self._scored(response)

    async def _scored(self, response: Response) -> RolloutResult | RolloutError:
        try:
            result = await finish(self._task, response, self._scorer)
            result.check(self._max_model_len)
        except Exception as error:
            return named(error, self._task)
        return result
