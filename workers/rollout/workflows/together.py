"""`Together`: the rollouts of one task as one piece of work, where the workflow asks once.

Each has the ids, the seed and the result that it would have alone; it is only cheaper: the prompt is made once, and one
asyncio task waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, TypeAlias
from uuid import UUID

from rftd.ops.errors import RolloutError
from rftd.streams.spec import ModelSpec, SamplingSpec
from rftd.workers.rollout.engine import Answers, Generation, GenerationRequest, GroupEngine
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response
from rftd.workers.rollout.rewards.scorer import Scorer
from rftd.workers.rollout.workflows.result import RolloutResult, named
from rftd.workers.rollout.workflows.simple import finish_now
from rftd.workers.rollout.workflows.workflow import SingleTurn
from rftd.workers.tasksets.task import Task
from rftd.workers.tasksets.tokenizer import Tokenizer

Ended: TypeAlias = tuple[int, RolloutResult | RolloutError]
"""A rollout's number among those that were asked, and its result or what went wrong."""


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
        self.task = task
        self._workflow = workflow
        self._scorer = scorer
        self.engine = engine
        self._tokenizer = tokenizer
        self._spec = spec
        self._sampling = sampling
        self._model: Model | None = None

    def asked(self, rollouts: Sequence[tuple[UUID, UUID]]) -> Attempt:
        """One attempt at each of the rollouts, given by its id and what its sampling derives from.

        Takes as long as generating takes: the caller bounds it. Leaving the context gives up what has not ended.
        """
        return Attempt(self, rollouts)

    def requests(self, rollouts: Sequence[tuple[UUID, UUID]]) -> list[GenerationRequest] | Response:
        """What they ask the engine, all with one prompt; a Response to all of them if it is not to be asked."""
        id, seed = rollouts[0]
        model = self._model = Model(
            self.engine, self._tokenizer, spec=self._spec, sampling=self._sampling, rollout=id, seed=seed
        )
        return model.ask_for(rollouts, self._workflow.prompt(self.task, model, self._scorer))

    def result(self, request: GenerationRequest, answer: Generation | RolloutError) -> RolloutResult | RolloutError:
        """What the engine's answer makes of a rollout."""
        if isinstance(answer, RolloutError):
            return named(answer, self.task)
        assert self._model is not None, "requests() came before"
        try:
            response = self._model.answer(request, answer)
        except Exception as error:
            return named(error, self.task)
        return self.scored(response)

    def scored(self, response: Response) -> RolloutResult | RolloutError:
        """The rollout that ends with this response."""
        try:
            result = finish_now(self.task, response, self._scorer)
            result.check(self._spec.max_model_len)
        except Exception as error:
            return named(error, self.task)
        return result


class Attempt:
    """Rollouts under way together; a context."""

    def __init__(self, together: Together, rollouts: Sequence[tuple[UUID, UUID]]) -> None:
        self._together = together
        self._rollouts = rollouts
        self._requests: list[GenerationRequest] = []
        self._generating: AbstractAsyncContextManager[Answers] | None = None
        self._answers: Answers | None = None
        self._told: Response | None = None
        self._failed: RolloutError | None = None

    @property
    def where(self) -> str:
        """The task's row."""
        return self._together.task.where

    async def __aenter__(self) -> Self:
        try:
            asked = self._together.requests(self._rollouts)
            if isinstance(asked, Response):
                self._told = asked
            else:
                generating = self._together.engine.generate_each(asked)
                self._answers = await generating.__aenter__()
                self._requests = asked
                self._generating = generating
        except Exception as error:  # one that can never run, or an engine that failed
            self._failed = named(error, self._together.task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._generating is not None:
            await self._generating.__aexit__(kind, value, trace)

    async def some(self) -> Sequence[Ended]:
        """Those that have ended since the last call; none once all were given."""
        if self._answers is not None:
            return [
                (number, self._together.result(self._requests[number], answer))
                for number, answer in await self._answers.some()
            ]
        failed = self._failed
        told = self._told
        self._failed = self._told = None
        if failed is not None:
            return [(number, failed) for number in range(len(self._rollouts))]
        if told is not None:
            return [(number, self._together.scored(told)) for number in range(len(self._rollouts))]
        return []
