"""`Model`: a workflow's view of the rollout engine. One instance serves one attempt at one rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, Self
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.ops.ids import derive, derive_from_each
from rftd.ops.tracing.tracer import current
from rftd.streams.events.experience import SamplingSpan, Span
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.call_spans import model_call, note_answer
from rftd.workers.generation.continuation import DrawnAnswers
from rftd.workers.generation.engine import Generation, GenerationRequest, RolloutEngine, Sampling, SchemaEngine
from rftd.workers.generation.response import PROMPT_TRUNCATED, Response
from rftd.workers.generation.sampling import check_sampling, other_settings

if TYPE_CHECKING:
    from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryModel
    from rftd.workers.workflows.result import RolloutResult
    from rftd.workers.workflows.rewards.reward import RewardResult


class CallBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the calls of one rollout to a model over HTTP."""

    calls: int = limits.ENDPOINT_CALLS
    """Total number of answers; a call with n choices counts n times."""
    concurrent: int = limits.ENDPOINT_CONCURRENT_CALLS
    """Maximum number of answers generated concurrently."""
    tokens: int = limits.ENDPOINT_TOKENS
    """Total number of generated tokens."""


class HttpModel(Protocol):
    """A model over HTTP, for one rollout and while the block runs: `async with model.served() as served`."""

    @property
    def base_url(self) -> str:
        """The base URL as clients expect it, including `/v1`."""

    @property
    def api_key(self) -> str:
        """The key of this rollout."""

    @property
    def turns(self) -> Sequence[Response]:
        """Answers of the conversation continued last, for rewards; empty before the first call."""

    @property
    def answers(self) -> Sequence[Response]:
        """All recorded answers, in the order of their recording."""

    @property
    def failure(self) -> RolloutError | None:
        """Why the newest call got no answer; None after an answer, and for a prompt too long."""

    @property
    def cut(self) -> Response | None:
        """Response to the newest prompt if it was too long; None otherwise."""

    def results(self, reward: RewardResult, *, cut: Response | None = None) -> list[RolloutResult]:
        """Returns everything generated as steps of a rollout with this reward: the result of a workflow.

        `cut` is the response to a prompt too long for the model, if the rollout ended with one; it then earns nothing.
        """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...


class ModelServer(Protocol):
    """The part of an explorer's HTTP endpoint used by `Model`."""

    def of(self, model: Model, bounds: CallBounds | None = None, *, lengths_only: bool = False) -> HttpModel:
        """Returns access to `model` for its rollout; see `Model.served`."""


class Model:
    """Answers prompts within the lengths of the experiment.

    The n-th call of a rollout has an id derived from the rollout and a seed derived from `seed`, so a repeated attempt
    makes the same requests with the same random numbers.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        *,
        spec: ModelSpec,
        sampling: SamplingSpec,
        rollout: UUID,
        seed: UUID | None = None,
        endpoint: ModelServer | None = None,
        auxiliary_models: Sequence[AuxiliaryModel] = (),
    ) -> None:
        """`rollout` is the id of the rollout, `seed` the source of its random numbers (default: the id); `endpoint`
        serves the model over HTTP.
        """
        self._engine = engine
        self._endpoint = endpoint
        self._spec = spec
        self._rollout = rollout
        self._seed = rollout if seed is None else seed
        """Source of the rollout's random numbers."""
        self._calls = 0
        """Number of requests made, including those with a prompt that was too long."""
        self._answers = DrawnAnswers()
        """Answers drawn in chats."""
        self.tokenizer = tokenizer
        self.sampling = sampling
        """The taskset's sampling settings; a call may bring others, made with `msgspec.structs.replace`."""
        self.auxiliary_models = auxiliary_models
        """The models of `explorer.auxiliary_models`, in the order of the file."""

    async def chat(
        self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None, reply_prefix: str = ""
    ) -> Response:
        """Returns the assistant's next message after `reply_prefix`; the prefix belongs to the prompt, not to the
        response.

        Messages continuing an answer of this model, with its text unchanged, continue the drawn ids.
        """
        prompt = self._answers.prompt(self.tokenizer, messages, reply_prefix)
        if prompt is None:
            prompt = self.chat_prompt(messages, reply_prefix=reply_prefix)
        # A prefix makes the prompt longer than the conversation, so only the prompt's ids describe the request.
        request = self.ask(prompt, sampling=sampling, messages=() if reply_prefix else messages)
        response = request if isinstance(request, Response) else await self.draw(request)
        self._answers.add(messages, reply_prefix, response)
        return response

    async def complete(self, prompt: str, *, sampling: SamplingSpec | None = None) -> Response:
        """Returns the response to a bare text, without a chat template."""
        return await self.generate(self.bare_prompt(prompt), sampling=sampling)

    @property
    def spec(self) -> ModelSpec:
        """The model of the experiment, with its lengths and the forms of its answers."""
        return self._spec

    @property
    def name(self) -> str:
        """The name of the model's folder."""
        return PurePath(self._spec.path).name

    @property
    def seed(self) -> UUID:
        """Source of the rollout's random numbers, equal for a repeated attempt."""
        return self._seed

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use."""
        return self._engine.version

    @property
    def holds_schemas(self) -> bool:
        """True if the engine can constrain a response by a JSON schema."""
        return isinstance(self._engine, SchemaEngine) and self._engine.holds_schemas

    def chat_prompt(self, messages: Sequence[Message], *, reply_prefix: str = "", tools: str = "") -> list[int]:
        """Returns the ids of a conversation's first prompt in `chat`; `tools` is a JSON list of the callable tools."""
        text = self.tokenizer.chat_text(messages, generation_prompt=True, tools=tools)
        return self.tokenizer.encode(text + reply_prefix)

    def bare_prompt(self, prompt: str) -> list[int]:
        """Returns the prompt ids of `complete`."""
        return self.tokenizer.encode(prompt, special=True)

    async def generate(self, prompt: Sequence[int], *, sampling: SamplingSpec | None = None) -> Response:
        """Returns the response to a prompt of token ids.

        A prompt over `max_prompt_tokens` is cut at its end and not generated from (`Response.truncated`), or raises
        RolloutError if the experiment forbids truncation.
        """
        request = self.ask(prompt, sampling=sampling)
        if isinstance(request, Response):
            return request
        return await self.draw(request)

    async def draw(self, request: GenerationRequest) -> Response:
        """Returns the response to a request made by this model's `ask`. Raises RolloutError if the engine fails."""
        parent = current()
        if parent is None:
            return self.answer(request, await self._engine.generate(request))
        with model_call(parent, self.name, request) as span:
            response = self.answer(request, await self._engine.generate(request))
            note_answer(span, response)
        return response

    def served(self, bounds: CallBounds | None = None, *, lengths_only: bool = False) -> HttpModel:
        """Serves this model over HTTP to programs with clients of OpenAI's API: `async with model.served() as served`.

        Inside, `served.base_url` and `served.api_key` are for this rollout alone. With `lengths_only` a call decides
        where an answer ends, and the experiment decides the other settings. Raises RolloutError where no endpoint is
        open.
        """
        if self._endpoint is None:
            raise RolloutError("no endpoint is open here", fix="make the WorkflowRunner with a ModelEndpoint")
        return self._endpoint.of(self, bounds, lengths_only=lengths_only)

    def ask(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingSpec | None = None,
        messages: Sequence[Message] = (),
        json_schema: str = "",
    ) -> GenerationRequest | Response:
        """Makes the rollout's next request, for callers using the engine directly; a Response if the prompt is too
        long.

        `messages` are the conversation rendered by the prompt, if any. The response obeys `json_schema`, if not empty
        and supported by the engine. Raises RolloutError as `generate` does.
        """
        number = self._calls
        # Counted before the prompt's length is checked: a cut call has a number too, or the ids of later calls would
        # depend on lengths.
        self._calls = self._calls + 1
        cut = self._cut_response(prompt)
        if cut is not None:
            return cut
        sampling_for = self._request_sampling(len(prompt), sampling or self.sampling, json_schema)
        return GenerationRequest(
            id=derive(self._rollout, "request", number),
            prompt=tuple(prompt),
            sampling=sampling_for(derive(self._seed, "sampling", number)),
            messages=tuple(messages),
        )

    def ask_for(
        self, rollouts: Iterable[tuple[UUID, UUID]], prompt: Sequence[int]
    ) -> list[GenerationRequest] | Response:
        """Makes the first requests of several rollouts, each an (id, seed), with one common prompt.

        Each equals the first request by `ask` of the rollout's own model. Returns a Response if the prompt is too long.
        """
        cut = self._cut_response(prompt)
        if cut is not None:
            return cut
        ids = tuple(prompt)
        sampling_for = self._request_sampling(len(ids), self.sampling)
        causes, seeds = zip(*rollouts, strict=True)
        ids_and_seeds = zip(derive_from_each(causes, "request", 0), derive_from_each(seeds, "sampling", 0), strict=True)
        return [GenerationRequest(id=id, prompt=ids, sampling=sampling_for(seed)) for id, seed in ids_and_seeds]

    def answer(self, request: GenerationRequest, generation: Generation) -> Response:
        """Returns the response made of the engine's answer to `request`. Raises RolloutError if the answer is
        malformed.
        """
        _check_generation(generation, request.sampling)
        return Response(
            text=self.tokenizer.decode(generation.tokens) if generation.text is None else generation.text,
            prompt=request.prompt,
            tokens=generation.tokens,
            logprobs=generation.logprobs,
            processed_logprobs=generation.processed_logprobs,
            spans=generation.spans,
            finish=generation.finish,
            sampling=(_sampling_span(request.sampling, len(generation.tokens)),),
        )

    def _request_sampling(
        self, prompt_tokens: int, settings: SamplingSpec, json_schema: str = ""
    ) -> Callable[[UUID], Sampling]:
        """Returns the settings for a prompt of `prompt_tokens` tokens, as a function of the id behind the seed."""
        check_sampling(settings)
        room = self._spec.max_model_len - prompt_tokens
        max_tokens = max(1, min(settings.max_tokens, self._spec.max_response_tokens, room))
        min_tokens = min(max(settings.min_tokens, self._spec.min_response_tokens), max_tokens)
        return lambda id: Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=settings.stop,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            presence_penalty=settings.presence_penalty,
            logit_bias=settings.logit_bias,
            ignore_eos=settings.ignore_eos,
            json_schema=json_schema,
            processed_logprobs=settings.processed_logprobs,
            # 63 bits fit every random generator.
            seed=id.int >> 65,
        )

    def _cut_response(self, prompt: Sequence[int]) -> Response | None:
        """Returns the response to a prompt over the limit; None for a prompt within the limit."""
        if not prompt:
            raise RolloutError("the prompt is empty", fix="give the task a prompt with at least one token")
        # One token of the model's length belongs to the response.
        limit = min(self._spec.max_prompt_tokens, self._spec.max_model_len - 1)
        return self._truncated_response(prompt, limit) if len(prompt) > limit else None

    def _truncated_response(self, prompt: Sequence[int], limit: int) -> Response:
        """Returns the untrained response to a prompt cut to `limit` tokens. Raises RolloutError unless prompts may be
        cut.
        """
        if not self._spec.enable_prompt_truncation:
            raise RolloutError(
                f"the prompt has {len(prompt)} tokens, the limit is {limit}",
                fix="raise model.max_prompt_tokens, shorten the row, or set model.enable_prompt_truncation",
            )
        version, generation = self._engine.version
        # A single untrained token, because an experience has a response.
        return Response(
            text="",
            prompt=tuple(prompt[:limit]),
            tokens=(self.tokenizer.eos_ids or (0,))[:1],
            logprobs=(0.0,),
            spans=(Span(version, generation, 0, 1),),
            finish=PROMPT_TRUNCATED,
        )


def _sampling_span(sampling: Sampling, tokens: int) -> SamplingSpan:
    """Returns the settings of all tokens of a response."""
    further_settings = tuple(other_settings(sampling))
    return SamplingSpan(0, tokens, sampling.temperature, sampling.top_p, sampling.top_k, further_settings)


def _check_generation(generation: Generation, sampling: Sampling) -> None:
    """Raises RolloutError for an engine's answer without tokens, or with a wrong number of log-probabilities."""
    count = len(generation.tokens)
    if count == 0 or count != len(generation.logprobs):
        raise RolloutError(
            f"the rollout engine answered with {count} tokens and {len(generation.logprobs)} log-probabilities",
            fix="this is a bug in the rollout engine",
        )
    processed_count = len(generation.processed_logprobs)
    if processed_count != (count if sampling.processed_logprobs else 0):
        raise RolloutError(
            f"the rollout engine answered with {count} tokens and {processed_count} processed log-probabilities",
            field="logprobs",
            fix="use an engine that records them, as torch does, or rollout_args.logprobs: raw",
        )
