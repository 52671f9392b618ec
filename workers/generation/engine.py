"""`RolloutEngine`: the seam between explorers and inference engines. Requests go in, tokens with log-probabilities come
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

import msgspec

from rftd.ops.errors import RolloutError, WorkError
from rftd.streams.events.experience import Span
from rftd.workers.datasets.message import Message
from rftd.workers.weights.channel import WeightsRef


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings for the tokens of one response."""

    temperature: float = 1.0
    """Divisor of the logits; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus size; 1 keeps every token."""
    top_k: int = -1
    """Number of likeliest tokens to keep; -1 keeps every token."""
    max_tokens: int
    """Maximum tokens of the response."""
    min_tokens: int = 0
    """Number of tokens to draw before an end-of-sequence token may be drawn."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; the matched text stays in the response."""
    min_p: float = 0.0
    """Least probability of a token, as a share of the likeliest token's; 0 keeps every token."""
    repetition_penalty: float = 1.0
    """Divisor of positive logits, and factor of negative logits, of tokens present in the prompt or response; 1: no
    effect.
    """
    presence_penalty: float = 0.0
    """Amount subtracted from the logit of each token drawn before."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and the amount added to its logit."""
    ignore_eos: bool = False
    """True: the response continues after an end of sequence."""
    json_schema: str = ""
    """JSON schema, as text, for the response to obey; empty: any text. Only a `SchemaEngine` supports schemas."""
    processed_logprobs: bool = False
    """True: also return each token's log-probability in the distribution from which the token was drawn."""
    seed: int = 0
    """Seed of the response: its tokens depend on the seed, the prompt and the weights.

    Neighbours in the batch affect tokens only by rounding, which hardly ever changes a token in float32, and now and
    then in half precision. An engine in deterministic mode draws the same bits beside any neighbours.
    """


Watch: TypeAlias = Callable[[Sequence[int], Sequence[float]], None]
"""Function called with the next tokens of a response and their log-probabilities, as soon as they are sampled  # [N],
[N]
"""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one response of the model: an id, prompt ids and sampling settings."""

    id: UUID
    """Id of the request."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    """Sampling settings."""
    messages: tuple[Message, ...] = ()
    """The conversation rendered by the prompt, for an engine with a remote model; empty for a bare prompt."""
    watch: Watch | None = None
    """Callback for tokens, called on the engine's event loop until the response is complete, by engines able to; must
    not raise.

    The reported tokens are the beginning of the response, unless the request fails.
    """


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's response to one request: tokens, log-probabilities and weight versions."""

    tokens: tuple[int, ...]
    """Response ids, with the end-of-sequence token if it was drawn  # [R]"""
    logprobs: tuple[float, ...]
    """Log-probability of each token at the request's temperature (greedy: at 1), before top-k and top-p  # [R]"""
    spans: tuple[Span, ...]
    """Weight versions of the tokens; the spans cover [0, R) without gap."""
    processed_logprobs: tuple[float, ...] = ()
    """Log-probability of each token after biases, penalties, min-p, top-k, top-p and the ban on early ends,
    renormalised over the kept tokens; 0 for a greedy token. Empty unless requested  # [R]
    """
    finish: str
    """`stop` (end of sequence or a stop text) or `length`."""
    text: str | None = None
    """The response's text as written by a remote service with `tokens` only for counting; None: the text is decoded
    from `tokens`.
    """


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine opened, and the state of its requests."""

    tokens_total: int
    """Number of tokens generated since the engine opened."""
    requests_total: int
    """Number of requests answered since the engine opened."""
    running: int
    """Number of requests whose response is being generated."""
    waiting: int
    """Requests waiting for a slot."""
    error: str = ""
    """Why the engine will never answer again; empty while it works."""
    waits_for: str = ""
    """Description of a remote service that does not respond and blocks the engine; empty otherwise."""


class RolloutEngine(Protocol):
    """Generates responses, many at once, while its weights may change between two tokens.

    Opened with a model folder (for the architecture and the tokenizer); it generates only after the first
    `load_weights`. Blocking work happens on threads or processes of the engine's own, never on the event loop.
    """

    @property
    def version(self) -> tuple[int, int]:
        """(version, generation) of the weights in use; (-1, -1) before the first."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns the response to one request; a cancelled call frees its slot at once.

        Raises RolloutError for a request that can never run (prompt too long), and when the engine failed.
        """
        ...

    async def load_weights(self, weights: WeightsRef) -> str:
        """Swaps the weights between two decode steps; running requests continue with the new weights.

        Returns the checksum of the loaded weights. Raises RolloutError if it differs from the announced checksum, and
        WeightsElsewhereError if this machine cannot have the weights; the old weights then stay in use.
        """
        ...

    def stats(self) -> EngineStats:
        """Returns the counters, for heartbeats and metrics."""
        ...

    async def close(self) -> None:
        """Stops the engine; running requests raise RolloutError. Idempotent."""
        ...


@runtime_checkable
class SchemaEngine(RolloutEngine, Protocol):
    """An engine with support for responses constrained by a JSON schema.

    Tokens forbidden by the schema are banned in the manner of `top_k`: log-probabilities stay the policy's own, over
    all tokens. Raises RolloutError, with the field `json_schema`, for an unreadable schema.
    """

    @property
    def holds_schemas(self) -> bool:
        """False for a wrapper around another engine without support for schemas."""
        ...


@runtime_checkable
class TransferTimed(RolloutEngine, Protocol):
    """An engine that measures how long fetching and verifying new weights takes."""

    @property
    def transfer_s(self) -> float:
        """Seconds of the last `load_weights` before the new weights replaced the old ones; 0 before the first load."""
        ...


class Answers(Protocol):
    """The responses to a group of requests, in order of completion."""

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        """Waits for further responses; returns each with the index of its request, or empty once all are answered."""
        ...


@runtime_checkable
class GroupEngine(RolloutEngine, Protocol):
    """An engine that takes several requests from one asyncio task, where a task for each would cost more than the
    tokens.
    """

    def generate_each(self, requests: Sequence[GenerationRequest]) -> AbstractAsyncContextManager[Answers]:
        """A context yielding responses as they finish, each as `generate` would return or raise it; leaving it cancels
        the rest.

        The caller bounds the number of requests. A request that can never run is answered with its RolloutError,
        because its neighbours may belong to other tasks.
        """
        ...


def check_lives(engine: RolloutEngine, name: str = "the rollout engine") -> None:
    """Raises WorkError if the engine (`name` in messages) has failed for good, so that a new process has to open
    another one.
    """
    error = engine.stats().error
    if error:
        raise WorkError(f"{name} failed: {error}", fix="nothing: the explorer restarts")
