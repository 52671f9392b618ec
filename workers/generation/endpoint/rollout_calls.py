"""`RolloutCalls`: the calls of one rollout, from their bounds to their record.

Two requests are one call, drawn and trained once, where they have the same `Idempotency-Key`, or where neither has one
and their bodies are the same while the first is under way, or where the second says that it repeats the first
(`x-stainless-retry-count`, which OpenAI's and Anthropic's clients send). A call is recorded when its answer is sent:
what no client was there to receive is not trained, unless it asks again.
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
from rftd.workers.generation.endpoint.turns import RecordedTurn, TurnRecord
from rftd.workers.generation.engine import GenerationRequest, Watch
from rftd.workers.generation.model import CallBounds, Model
from rftd.workers.generation.response import Response

TOO_LONG: Final = "context_length_exceeded"
Place: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""The block within which one answer is drawn: it may wait first, limit the time, and raise CallError."""


class Repetition(msgspec.Struct, frozen=True):
    """What tells a repeated request from a new one."""

    body: bytes
    """A digest of path and body."""
    key: str = ""
    """The idempotency key; empty without one."""
    said: bool = False
    """The client says that it repeats an earlier request."""
    size_bytes: int = 0
    """The size of the body."""


class ModelCall:
    """A call that is answered once, to however many requests."""

    def __init__(self, asked: ApiCall, repetition: Repetition) -> None:
        self.asked = asked
        self.repetition = repetition
        self.waiting = 0
        """Requests that wait for the answer."""
        self.recorded = False
        self.begun: Begun | None = None
        """What is known of its answer before that is complete; None until it is drawn."""
        self.drawn: list[tuple[list[int], list[float]]] = []
        """The tokens of each choice so far, and their log-probabilities, if they are streamed."""
        self.listeners: set[Callable[[], None]] = set()
        """Called when there is more of it."""
        self.task: asyncio.Task[Answered | CallError] | None = None

    def watch(self, begun: Begun) -> list[Watch]:
        """Keeps what is drawn for each choice of the answer that begins."""
        self.begun = begun
        self.drawn = [([], []) for _ in range(self.asked.question.choices)]
        return [partial(self._grew, *each) for each in self.drawn]

    def _grew(
        self, tokens: list[int], logprobs: list[float], new: Sequence[int], new_logprobs: Sequence[float]
    ) -> None:
        tokens += new
        logprobs += new_logprobs
        for listener in self.listeners:
            listener()

    @property
    def under_way(self) -> bool:
        """True while its answer is drawn."""
        return self.task is not None and not self.task.done() and not self.task.cancelling()

    @property
    def waits(self) -> bool:
        """True while a request waits for it, or its answer is drawn."""
        return self.waiting > 0 or (self.task is not None and not self.task.done())

    @property
    def answered(self) -> bool:
        """True once it has an answer, and no error."""
        task = self.task
        return task is not None and task.done() and not task.cancelled() and isinstance(task.result(), Answered)


class RolloutCalls:
    """The calls of one rollout. All of it happens on one event loop."""

    def __init__(
        self,
        model: Model,
        bounds: CallBounds,
        *,
        lengths_only: bool,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        place: Place = nullcontext,
        span: TraceSpan | None = None,
    ) -> None:
        """`span` is that of the rollout, where it is traced."""
        self.span = span
        self.model = model
        self.record = TurnRecord()
        self.failure: RolloutError | None = None
        """Why the newest call could not be answered; None if it was."""
        self.cut: Response | None = None
        """The response to the newest prompt if it did not fit."""
        self.ended = False
        self._bounds = bounds
        self._lengths_only = lengths_only
        self.tasks = tasks
        """The group that calls and their requests run in."""
        self._clock = clock
        self._place = place
        self._calls = 0
        self._running = 0
        self._tokens = 0
        """Those that were drawn, and the most that those under way may draw."""
        self._keyed: dict[str, ModelCall] = {}
        self._unkeyed: dict[bytes, ModelCall] = {}
        """The newest call with each body."""
        self._order: deque[ModelCall] = deque()
        """Those two together, oldest first, and some that a newer one has replaced."""
        self._kept_bytes = 0
        """The bodies of those."""

    def enter(self, asked: ApiCall, repetition: Repetition) -> ModelCall:
        """The call that a request belongs to: one that was made, or a new one, which begins. Raises CallError."""
        known = self._known(repetition)
        if known is not None:
            return known
        question = asked.question
        call = ModelCall(asked, repetition)
        self._admit(question.choices)
        call.task = self.tasks.create_task(self._outcome(call))
        # Not in the task, which may be cancelled before its first step.
        call.task.add_done_callback(lambda _: self._over(question.choices))
        if repetition.key:
            self._keyed[repetition.key] = call
        else:
            self._unkeyed[repetition.body] = call
        self._order.append(call)
        self._kept_bytes += repetition.size_bytes
        self._forget()
        return call

    def leave(self, call: ModelCall) -> None:
        """A request waits no more. The last one that leaves before the answer cancels it, and frees its slot."""
        call.waiting -= 1
        if not call.waiting and call.under_way:
            assert call.task is not None
            call.task.cancel()

    def deliver(self, call: ModelCall, answered: Answered) -> None:
        """Records the call, once: its answer is on its way."""
        if call.recorded or self.ended:
            return
        call.recorded = True
        self.failure = None
        self.cut = None
        for response in answered.responses:
            key = call.asked.question.key_after(answered.prompt, response)
            self.record.add(RecordedTurn(response, answered.prompt.parent), key)

    async def end(self) -> None:
        """Cancels what is under way, and waits for it; nothing is recorded from now on."""
        self.ended = True
        calls = [*self._keyed.values(), *self._unkeyed.values()]
        running = [call.task for call in calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _known(self, repetition: Repetition) -> ModelCall | None:
        if repetition.key:
            call = self._keyed.get(repetition.key)
            if call is not None and call.repetition.body != repetition.body:
                raise CallError(
                    422, "this idempotency key came with another request before", reason="idempotency_key_reused"
                )
            repeated = call is not None and call.answered
        else:
            call = self._unkeyed.get(repetition.body)
            repeated = call is not None and call.answered and repetition.said
        return call if call is not None and (call.under_way or repeated) else None

    def _forget(self) -> None:
        """Lets go of the oldest calls that are over, beyond what is kept: their repetition would be a new call."""
        while self._kept_bytes > limits.ENDPOINT_KEPT_SIZE_BYTES and not self._order[0].waits:
            call = self._order.popleft()
            repetition = call.repetition
            self._kept_bytes -= repetition.size_bytes
            # A newer call may have taken its place.
            if repetition.key and self._keyed.get(repetition.key) is call:
                del self._keyed[repetition.key]
            elif not repetition.key and self._unkeyed.get(repetition.body) is call:
                del self._unkeyed[repetition.body]

    def _admit(self, choices: int) -> None:
        bounds = self._bounds
        if self._calls + choices > bounds.calls:
            raise _spent(f"this rollout may ask for {bounds.calls} answers in all")
        if self._running + choices > bounds.concurrent:
            raise CallError(
                429,
                f"{self._running} answers are drawn for this rollout, and {bounds.concurrent} may be at a time",
                kind="requests",
                reason="rate_limit_exceeded",
            )
        self._calls += choices
        self._running += choices

    def _over(self, choices: int) -> None:
        self._running -= choices

    async def _outcome(self, call: ModelCall) -> Answered | CallError:
        try:
            async with self._place():
                return await self._answer(call, call.asked.question)
        except CallError as error:
            return error
        except RftdError as error:
            self.failure = error if isinstance(error, RolloutError) else RolloutError(error.what, fix=error.fix)
            asked_wrong = error.field is not None or isinstance(error, UsageError)
            if asked_wrong:
                held = call.asked.question.settings.held
                of_schema = held is not None and error.field == "json_schema"
                return CallError(400, error.what, param=held.param if held is not None and of_schema else error.field)
            return CallError(500, error.what, kind=SERVER)
        except Exception as bug:
            # The details stay in the log: a traceback in an answer would tell the agent of our files.
            logger().error("endpoint.bug", error=repr(bug), exc_info=bug)
            return bug_in_rftd()

    async def _answer(self, call: ModelCall, question: Question) -> Answered:
        left = self._bounds.tokens - self._tokens
        if left < question.choices:
            raise _spent(f"this rollout may draw {self._bounds.tokens} tokens in all")
        prompt = question.prompt(self.model, self.record)
        sampling = question.settings.over(self.model.sampling, lengths_only=self._lengths_only)
        sampling = msgspec.structs.replace(
            sampling,
            max_tokens=min(sampling.max_tokens, left // question.choices),
            stop=(*sampling.stop, *prompt.ends),
        )
        schema = self._schema(question.settings.held, prompt, sampling)
        requests = [self._request(prompt.ids, sampling, schema) for _ in range(question.choices)]
        begun = Begun(
            id=requests[0].id.hex,
            created_s=self._clock.now_ns() // 1_000_000_000,
            prompt=prompt,
            tokens_of=self.model,
            version=self.model.version,
        )
        if call.asked.stream:
            watched = zip(requests, call.watch(begun), strict=True)
            requests = [msgspec.structs.replace(request, watch=watch) for request, watch in watched]
        most = sum(request.sampling.max_tokens for request in requests)
        self._tokens += most
        drawn = 0
        try:
            responses = await self._draw(requests)
            drawn = sum(len(response.tokens) for response in responses)
        finally:
            self._tokens += drawn - most
        return Answered.of(begun, responses)

    def _schema(self, held: HeldAnswer | None, prompt: QuestionPrompt, sampling: SamplingSpec) -> str:
        """The JSON schema of the answer; empty for any text. Raises CallError if the answer cannot be held to it."""
        if held is None:
            return ""
        why = None
        if not self.model.holds_schemas:
            why = "this engine cannot hold an answer to it; explorer.rollout_model.engine_type: vllm can"
        elif prompt.in_thought:
            why = "the answer begins with a thought, which no schema allows; set enable_thinking to false"
        elif sampling.ignore_eos or max(sampling.min_tokens, self.model.spec.min_response_tokens) > 1:
            why = "the end that the schema asks for is banned, by ignore_eos or by a least number of tokens"
        if why is not None:
            raise unsupported(held.param, f"{held.param} is set, and {why}")
        return held.json_schema

    def _request(self, ids: Sequence[int], sampling: SamplingSpec, json_schema: str) -> GenerationRequest:
        try:
            asked = self.model.ask(ids, sampling=sampling, json_schema=json_schema)
        except RolloutError as error:
            self.failure = error
            raise CallError(400, error.what, param=error.field or "messages", reason=_reason(error)) from error
        if isinstance(asked, Response):
            self.cut = asked
            self.failure = None
            what = f"the prompt of {len(ids)} tokens is longer than the model's context allows ({len(asked.prompt)})"
            raise CallError(400, what, reason=TOO_LONG, param="messages")
        return asked

    async def _draw(self, requests: Sequence[GenerationRequest]) -> list[Response]:
        if len(requests) == 1:
            return [await self.model.draw(requests[0])]
        try:
            async with asyncio.TaskGroup() as several:
                drawing = [several.create_task(self.model.draw(request)) for request in requests]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in drawing]


def _reason(error: RolloutError) -> str | None:
    # A setting that is wrong is named; what else is refused is a prompt that is empty or too long.
    return None if error.field else TOO_LONG


def _spent(what: str) -> CallError:
    # Not 429: clients try that again by themselves, and there will never be more.
    return CallError(403, what, kind="permission_error", reason="rollout_bound_reached")
