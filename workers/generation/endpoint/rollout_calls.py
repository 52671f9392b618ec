"""`RolloutCalls`: the calls of one rollout, from their bounds to their record.

Two requests are one call, drawn and trained once, if they have the same `Idempotency-Key`, or if neither has a key and
either their bodies are equal while the first is under way, or the second declares itself a repetition
(`x-stainless-retry-count`, sent by OpenAI's and Anthropic's clients). A call is recorded when its answer is sent: an
answer without a client to receive it is not trained, unless a client asks again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Final, TypeAlias

import msgspec

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError, RolloutError, UsageError
from rftd.ops.logs import logger
from rftd.ops.tracing.tracer import TraceSpan
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.endpoint.api_call import Answered, ApiCall, Begun
from rftd.workers.generation.endpoint.call_error import SERVER, CallError, bug_in_rftd, unsupported
from rftd.workers.generation.endpoint.question import HeldAnswer, Question, QuestionPrompt
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.generation.engine import GenerationRequest, Watch
from rftd.workers.generation.model import CallBounds, Model
from rftd.workers.generation.response import Response

TOO_LONG: Final = "context_length_exceeded"
"""Reason code of a prompt over the model's context."""
DrawBlock: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""A context around generating one answer: may wait first, limit the time, and raise CallError."""


class Repetition(msgspec.Struct, frozen=True):
    """Properties by which a repeated request is recognised."""

    body: bytes
    """Digest of path and body."""
    key: str = ""
    """Idempotency key; empty without one."""
    declared: bool = False
    """True: the client declares the request a repetition of an earlier one."""
    size_bytes: int = 0
    """Size of the body."""


class ModelCall:
    """A call answered once, for one or several requests."""

    def __init__(self, api_call: ApiCall, repetition: Repetition) -> None:
        """`repetition` has the marks by which a repeated request is recognised."""
        self.api_call = api_call
        self.repetition = repetition
        self.waiting = 0
        """Number of requests waiting for the answer."""
        self.recorded = False
        """True once the answer was recorded for training."""
        self.begun: Begun | None = None
        """The unfinished answer's id, prompt and weights; None until the draw begins."""
        self.drawn: list[tuple[list[int], list[float]]] = []
        """Tokens and log-probabilities of each choice until now, for a streamed answer."""
        self.listeners: set[Callable[[], None]] = set()
        """Callbacks for new tokens."""
        self.task: asyncio.Task[Answered | CallError] | None = None
        """Task drawing the answer; None before the task starts."""

    def watch(self, begun: Begun) -> list[Watch]:
        """Starts recording the tokens of each choice, and returns a callback for each."""
        self.begun = begun
        self.drawn = [([], []) for _ in range(self.api_call.question.choices)]
        return [partial(self._add_tokens, *choice) for choice in self.drawn]

    def _add_tokens(
        self, tokens: list[int], logprobs: list[float], new: Sequence[int], new_logprobs: Sequence[float]
    ) -> None:
        """Adds new tokens to a choice, and calls the listeners."""
        tokens += new
        logprobs += new_logprobs
        for listener in self.listeners:
            listener()

    @property
    def under_way(self) -> bool:
        """True while the answer is being generated."""
        return self.task is not None and not self.task.done() and not self.task.cancelling()

    @property
    def waits(self) -> bool:
        """True while a request waits for the answer, or the answer is being generated."""
        return self.waiting > 0 or (self.task is not None and not self.task.done())

    @property
    def answered(self) -> bool:
        """True after a complete answer; False after an error."""
        task = self.task
        return task is not None and task.done() and not task.cancelled() and isinstance(task.result(), Answered)


class RolloutCalls:
    """The calls of one rollout. Everything runs on one event loop."""

    def __init__(
        self,
        model: Model,
        bounds: CallBounds,
        *,
        lengths_only: bool,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        draw_block: DrawBlock = nullcontext,
        span: TraceSpan | None = None,
    ) -> None:
        """`span` is the rollout's span, where the rollout is traced."""
        self.span = span
        self.model = model
        self.record = TurnRecord()
        """Recorded answers."""
        self.failure: RolloutError | None = None
        """Why the newest call failed; None after an answer."""
        self.cut: Response | None = None
        """Response to the newest prompt if it was too long; None otherwise."""
        self.ended = False
        """True after `end`: no call is recorded any more."""
        self._bounds = bounds
        self._lengths_only = lengths_only
        self.tasks = tasks
        """Group of the tasks of calls and requests."""
        self._clock = clock
        self._draw_block = draw_block
        self._calls = 0
        """Number of answers requested."""
        self._running = 0
        """Number of answers being drawn."""
        self._tokens = 0
        """Tokens generated, plus the maximum for answers being generated."""
        self._calls_by_key: dict[str, ModelCall] = {}
        """Calls with an idempotency key."""
        self._unkeyed: dict[bytes, ModelCall] = {}
        """Newest call for each body's digest."""
        self._order: deque[ModelCall] = deque()
        """Remembered calls, oldest first, including some replaced by newer ones."""
        self._remembered_bytes = 0
        """Total size of the bodies of `_order`."""

    def enter(self, api_call: ApiCall, repetition: Repetition) -> ModelCall:
        """Returns the call to which a request belongs: an earlier one that it repeats, or a new one, which is started.

        Raises CallError if the call is refused.
        """
        earlier = self._earlier_call(repetition)
        if earlier is not None:
            return earlier
        question = api_call.question
        call = ModelCall(api_call, repetition)
        self._reserve_slots(question.choices)
        call.task = self.tasks.create_task(self._answer_or_error(call))
        # Not inside the task, which may be cancelled before its first step.
        call.task.add_done_callback(lambda _: self._release_slots(question.choices))
        if repetition.key:
            self._calls_by_key[repetition.key] = call
        else:
            self._unkeyed[repetition.body] = call
        self._order.append(call)
        self._remembered_bytes += repetition.size_bytes
        self._forget_oldest()
        return call

    def leave(self, call: ModelCall) -> None:
        """Ends a request's wait for the answer; when nobody waits any more, the call is cancelled and its
        slot freed.
        """
        call.waiting -= 1
        if not call.waiting and call.under_way:
            assert call.task is not None
            call.task.cancel()

    def deliver(self, call: ModelCall, answered: Answered) -> None:
        """Records the call for training, once, when its answer is sent."""
        if call.recorded or self.ended:
            return
        call.recorded = True
        self.failure = None
        self.cut = None
        for response in answered.responses:
            key = call.api_call.question.key_after(answered.prompt, response)
            self.record.add(RecordedTurn(response, answered.prompt.parent), key)

    async def end(self) -> None:
        """Cancels unanswered calls and waits for their end; no call is recorded afterwards."""
        self.ended = True
        calls = [*self._calls_by_key.values(), *self._unkeyed.values()]
        running = [call.task for call in calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _earlier_call(self, repetition: Repetition) -> ModelCall | None:
        """Returns the call repeated by a request; None for a new one. Raises CallError for a key used by another
        request.
        """
        if repetition.key:
            call = self._calls_by_key.get(repetition.key)
            if call is not None and call.repetition.body != repetition.body:
                raise CallError(
                    422, "this idempotency key was used for another request", reason="idempotency_key_reused"
                )
            repeated = call is not None and call.answered
        else:
            call = self._unkeyed.get(repetition.body)
            repeated = call is not None and call.answered and repetition.declared
        return call if call is not None and (call.under_way or repeated) else None

    def _forget_oldest(self) -> None:
        """Forgets the oldest finished calls above the size limit; their repetition would be a new call."""
        while self._remembered_bytes > limits.ENDPOINT_KEPT_SIZE_BYTES and not self._order[0].waits:
            call = self._order.popleft()
            repetition = call.repetition
            self._remembered_bytes -= repetition.size_bytes
            # A newer call may have replaced the call in its table.
            if repetition.key and self._calls_by_key.get(repetition.key) is call:
                del self._calls_by_key[repetition.key]
            elif not repetition.key and self._unkeyed.get(repetition.body) is call:
                del self._unkeyed[repetition.body]

    def _reserve_slots(self, choices: int) -> None:
        """Reserves slots for these choices. Raises CallError at a bound of the rollout."""
        bounds = self._bounds
        if self._calls + choices > bounds.calls:
            raise _bound_error(f"this rollout may request {bounds.calls} answers in total")
        if self._running + choices > bounds.concurrent:
            raise CallError(
                429,
                f"{self._running} answers are being drawn for this rollout, at most {bounds.concurrent} at a time",
                kind="requests",
                reason="rate_limit_exceeded",
            )
        self._calls += choices
        self._running += choices

    def _release_slots(self, choices: int) -> None:
        """Frees the slots of ended choices, so that further answers may be drawn."""
        self._running -= choices

    async def _answer_or_error(self, call: ModelCall) -> Answered | CallError:
        """Draws the answer; returns an error as the client has to see it."""
        try:
            async with self._draw_block():
                return await self._draw_answer(call, call.api_call.question)
        except CallError as error:
            return error
        except RftdError as error:
            self.failure = error if isinstance(error, RolloutError) else RolloutError(error.what, fix=error.fix)
            client_fault = error.field is not None or isinstance(error, UsageError)
            if client_fault:
                constraint = call.api_call.question.settings.held
                of_schema = constraint is not None and error.field == "json_schema"
                return CallError(
                    400, error.what, param=constraint.param if constraint is not None and of_schema else error.field
                )
            return CallError(500, error.what, kind=SERVER)
        except Exception as bug:
            # The details stay in the log: a traceback in an answer would show the agent this project's files.
            logger().error("endpoint.bug", error=repr(bug), exc_info=bug)
            return bug_in_rftd()

    async def _draw_answer(self, call: ModelCall, question: Question) -> Answered:
        """Draws all choices of a question within the rollout's tokens. Raises CallError, RolloutError."""
        remaining_tokens = self._bounds.tokens - self._tokens
        if remaining_tokens < question.choices:
            raise _bound_error(f"this rollout may draw {self._bounds.tokens} tokens in total")
        prompt = question.prompt(self.model, self.record)
        sampling = question.settings.over(self.model.sampling, lengths_only=self._lengths_only)
        sampling = msgspec.structs.replace(
            sampling,
            max_tokens=min(sampling.max_tokens, remaining_tokens // question.choices),
            stop=(*sampling.stop, *prompt.ends),
        )
        schema = self._checked_schema(question.settings.held, prompt, sampling)
        requests = [self._make_request(prompt.ids, sampling, schema) for _ in range(question.choices)]
        begun = Begun(
            id=requests[0].id.hex,
            created_s=self._clock.now_ns() // 1_000_000_000,
            prompt=prompt,
            tokens_of=self.model,
            version=self.model.version,
        )
        if call.api_call.stream:
            watched = zip(requests, call.watch(begun), strict=True)
            requests = [msgspec.structs.replace(request, watch=watch) for request, watch in watched]
        reserved_tokens = sum(request.sampling.max_tokens for request in requests)
        self._tokens += reserved_tokens
        drawn = 0
        try:
            responses = await self._draw_all(requests)
            drawn = sum(len(response.tokens) for response in responses)
        finally:
            self._tokens += drawn - reserved_tokens
        return Answered.of(begun, responses)

    def _checked_schema(self, constraint: HeldAnswer | None, prompt: QuestionPrompt, sampling: SamplingSpec) -> str:
        """Returns the JSON schema of the answer; empty for any text. Raises CallError for a constraint that the engine
        or the prompt rules out.
        """
        if constraint is None:
            return ""
        obstacle = None
        if not self.model.holds_schemas:
            obstacle = "this engine cannot enforce it; explorer.rollout_model.engine_type: vllm can"
        elif prompt.in_thought:
            obstacle = "the answer begins with a thought, which no schema allows; set enable_thinking to false"
        elif sampling.ignore_eos or max(sampling.min_tokens, self.model.spec.min_response_tokens) > 1:
            obstacle = "the end required by the schema is banned, by ignore_eos or by a minimum number of tokens"
        if obstacle is not None:
            raise unsupported(constraint.param, f"{constraint.param} is set, and {obstacle}")
        return constraint.json_schema

    def _make_request(self, ids: Sequence[int], sampling: SamplingSpec, json_schema: str) -> GenerationRequest:
        """Builds the engine's request. Raises CallError for an invalid or too long prompt."""
        try:
            request = self.model.ask(ids, sampling=sampling, json_schema=json_schema)
        except RolloutError as error:
            self.failure = error
            raise CallError(400, error.what, param=error.field or "messages", reason=_reason_code(error)) from error
        if isinstance(request, Response):
            self.cut = request
            self.failure = None
            problem = (
                f"the prompt of {len(ids)} tokens is longer than the model's context allows ({len(request.prompt)})"
            )
            raise CallError(400, problem, reason=TOO_LONG, param="messages")
        return request

    async def _draw_all(self, requests: Sequence[GenerationRequest]) -> list[Response]:
        """Returns the responses to all requests, drawn at the same time; the first error cancels the others."""
        if len(requests) == 1:
            return [await self.model.draw(requests[0])]
        try:
            async with asyncio.TaskGroup() as draws:
                drawing = [draws.create_task(self.model.draw(request)) for request in requests]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in drawing]


def _reason_code(error: RolloutError) -> str | None:
    # Invalid settings carry a field; otherwise the prompt is empty or too long.
    """Returns the reason code of an error about the prompt; None for an error about settings."""
    return None if error.field else TOO_LONG


def _bound_error(problem: str) -> CallError:
    # Not 429: clients would retry automatically, and the bound never rises.
    """Returns the error at a bound of the rollout, which clients do not retry."""
    return CallError(403, problem, kind="permission_error", reason="rollout_bound_reached")
