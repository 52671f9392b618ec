"""`BatchedRollouts`: rollouts of single-turn workflows, as one request to the engine.

Each rollout has the ids, seed and result of a separate run, at lower cost: the prompt is made once for all rollouts of
its task, and one asyncio task waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby

from rftd.ops.errors import RolloutError
from rftd.ops.tracing.conventions import CANCELLED
from rftd.ops.tracing.tracer import TraceSpan
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.call_spans import model_call, note_answer
from rftd.workers.generation.engine import Answers, Generation, GenerationRequest, GroupEngine
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response
from rftd.workers.workflows.attempt import Ended, TaskRollout
from rftd.workers.workflows.result import RolloutResult, named
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.simple import finish_now
from rftd.workers.workflows.workflow import SingleTurn


class BatchedRollouts:
    """Implements `Attempt` with one request to a `GroupEngine`; made by `WorkflowRunner.together`."""

    def __init__(
        self,
        rollouts: Sequence[TaskRollout],
        opened: Callable[[Task], tuple[SingleTurn, Scorer]],
        *,
        engine: GroupEngine,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        sampling: SamplingSpec,
    ) -> None:
        """`opened` returns the workflow and the quick reward of a task."""
        self.rollouts = rollouts
        self._opened = opened
        self._engine = engine
        self._tokenizer = tokenizer
        self._spec = spec
        self._sampling = sampling
        self._requests: list[tuple[int, GenerationRequest, _PromptInUse]] = []
        """Requests with the rollout's index and prompt."""
        self._unasked: list[Ended] = []
        """Rollouts ended without a request, because their prompt is too long or could not be made."""
        self._generating: AbstractAsyncContextManager[Answers] | None = None
        """Context of the engine's answers; None before the first `some`."""
        self._answers: Answers | None = None
        """The engine's answers; None before the first `some`."""
        self._begun = False
        """True once the requests were made."""
        self._calls: dict[int, TraceSpan] = {}
        """Spans of unanswered requests by their number, for traced rollouts."""

    async def some(self) -> Sequence[Ended]:
        """Waits for ended rollouts, and returns them; see `Attempt.some`."""
        if not self._begun:
            self._begun = True
            self._ask()
        if self._unasked:
            unasked = self._unasked
            self._unasked = []
            return unasked
        if self._answers is None:
            # Entered here, not in the constructor, so that the attempt's time-out covers it.
            generating = self._engine.generate_each([request for _, request, _ in self._requests])
            self._answers = await generating.__aenter__()
            self._generating = generating
        ended: list[Ended] = []
        for number, answer in await self._answers.some():
            index, request, prompt = self._requests[number]
            span = self.rollouts[index].request.span
            if span is None:
                ended.append((index, prompt.result(request, answer)))
            else:
                ended.append((index, prompt.traced(request, answer, self._calls.pop(number), span)))
        return ended

    async def leave(self) -> Collection[int]:
        """Cancels the unanswered requests, which frees the engine's slots; returns no rollout, because none
        continues.
        """
        for call in self._calls.values():
            call.fail(CANCELLED)
            call.end()
        self._calls.clear()
        if self._generating is not None:
            generating = self._generating
            self._generating = None
            await generating.__aexit__(None, None, None)
        return ()

    def _ask(self) -> None:
        """Makes the requests, with one prompt for neighbouring rollouts of equal task and sampling.

        Compared by identity, equal for a task read once: comparing whole rows would cost more than a prompt.
        """
        for _, neighbours in groupby(enumerate(self.rollouts), _prompt_key):
            members = list(neighbours)
            first = members[0][1]
            try:
                prompted = self._prompt_and_requests([rollout for _, rollout in members])
            except Exception as error:
                failed = named(error, first.task)
                self._unasked += [(index, failed) for index, _ in members]
                continue
            prompt, requests = prompted
            if isinstance(requests, Response):
                self._unasked += [(index, prompt.scored(requests)) for index, _ in members]
            else:
                self._requests += [
                    (index, request, prompt) for (index, _), request in zip(members, requests, strict=True)
                ]

        for number, (index, request, prompt) in enumerate(self._requests):
            if (parent := self.rollouts[index].request.span) is not None:
                self._calls[number] = model_call(parent, prompt.model_name, request)

    def _prompt_and_requests(
        self, rollouts: Sequence[TaskRollout]
    ) -> tuple[_PromptInUse, list[GenerationRequest] | Response]:
        """Returns the common prompt of rollouts, and a request for each; a response if the prompt is too long."""
        first_request = rollouts[0].request
        task = rollouts[0].task
        workflow, scorer = self._opened(task)
        model = Model(
            self._engine,
            self._tokenizer,
            spec=self._spec,
            sampling=first_request.sampling or self._sampling,
            rollout=first_request.id,
            seed=first_request.seed,
        )
        requests = model.ask_for(
            [(rollout.request.id, rollout.request.seed) for rollout in rollouts], workflow.prompt(task, model, scorer)
        )
        return _PromptInUse(task, model, scorer, self._spec.max_model_len), requests


def _prompt_key(numbered: tuple[int, TaskRollout]) -> tuple[int, int]:
    """Returns the key shared by rollouts of one task and sampling."""
    rollout = numbered[1]
    return id(rollout.task), id(rollout.request.sampling)


class _PromptInUse:
    """A prompt in use, for turning its answers into results."""

    def __init__(self, task: Task, model: Model, scorer: Scorer, max_model_len: int) -> None:
        """Answers are scored by `scorer`, and cut to `max_model_len` tokens."""
        self._task = task
        self._model = model
        self._scorer = scorer
        self._max_model_len = max_model_len

    @property
    def model_name(self) -> str:
        """Name of the model's folder."""
        return self._model.name

    def traced(
        self, request: GenerationRequest, answer: Generation | RolloutError, call: TraceSpan, rollout: TraceSpan
    ) -> RolloutResult | RolloutError:
        """Returns `result`, after ending the span `call`; the reward's span is a child of the span `rollout`."""
        if isinstance(answer, RolloutError):
            call.fail(answer)
            call.end()
            return named(answer, self._task)
        try:
            response = self._model.answer(request, answer)
        except Exception as error:
            call.fail(error)
            return named(error, self._task)
        else:
            note_answer(call, response)
        finally:
            call.end()
        with rollout.active():
            return self.scored(response)

    def result(self, request: GenerationRequest, answer: Generation | RolloutError) -> RolloutResult | RolloutError:
        """Returns the rollout's result, or error, for the engine's answer to `request`."""
        if isinstance(answer, RolloutError):
            return named(answer, self._task)
        try:
            response = self._model.answer(request, answer)
        except Exception as error:
            return named(error, self._task)
        return self.scored(response)

    def scored(self, response: Response) -> RolloutResult | RolloutError:
        """Returns the rollout's result, or error, for a response."""
        try:
            rollout_result = finish_now(self._task, response, self._scorer)
            rollout_result.check(self._max_model_len)
        except Exception as error:
            return named(error, self._task)
        return rollout_result
