"""`RolloutEngine`: what an explorer asks of whatever generates tokens."""

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
    """The settings that the tokens of one response are drawn with."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps every token."""
    max_tokens: int
    min_tokens: int = 0
    """The number of tokens before which no end-of-sequence token can be drawn."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; they stay in it."""
    min_p: float = 0.0
    """Keeps tokens at least so likely as this share of the likeliest; 0 keeps every token."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that were there, and multiplies negative ones; 1 changes nothing."""
    presence_penalty: float = 0.0
    """Taken off the logit of each token that was drawn before."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    ignore_eos: bool = False
    """Go on after an end of sequence."""
    json_schema: str = ""
    """The JSON schema, as text, that the response obeys; empty: any text. For a `SchemaEngine` alone."""
    processed_logprobs: bool = False
    """Give each token's log-probability in the distribution that it was drawn from, too."""
    seed: int = 0
    """The tokens of a request depend on this, on its prompt and on the weights.

    On its neighbours in the batch only by rounding, which hardly ever changes a token in float32, and now and then in
    half precision. An engine in deterministic mode draws the same bits beside any neighbours.
    """


Watch: TypeAlias = Callable[[Sequence[int], Sequence[float]], None]
"""Is told the next tokens of a response and their log-probabilities, as soon as they are drawn  # [N], [N]"""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A response to be drawn."""

    id: UUID
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    messages: tuple[Message, ...] = ()
    """The conversation that the prompt renders, for an engine whose model is elsewhere; empty of a bare prompt."""
    watch: Watch | None = None
    """Called on the engine's event loop until the response is there, by engines that can; it must not raise.

    What it was told is the beginning of the response, unless that fails.
    """


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn response."""

    tokens: tuple[int, ...]
    """Response ids, with the end-of-sequence token if it was drawn  # [R]"""
    logprobs: tuple[float, ...]
    """Log-probability of each token at the request's temperature (greedy: at 1), before top-k and top-p  # [R]"""
    spans: tuple[Span, ...]
    """The weights that drew the tokens; spans cover [0, R) without gap."""
    processed_logprobs: tuple[float, ...] = ()
    """Log-probability of each token after biases, penalties, min-p, top-k, top-p and the ban on early ends,
    renormalised over what they keep; 0 for a token that was drawn greedily. Empty unless asked for  # [R]"""
    finish: str
    """`stop` (end of sequence or a stop text) or `length`."""
    text: str | None = None
    """The response as a service wrote it, where `tokens` only count it; None: it is what `tokens` decode to."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine opened."""

    tokens_total: int
    requests_total: int
    running: int
    waiting: int
    error: str = ""
    """Why the engine will answer nothing more; empty while it works."""
    waits_for: str = ""
    """The service, in words, that it asks and that does not answer; else empty."""


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
        """The response to one request. Cancelling it frees its slot at once.

        Raises RolloutError for a request that can never run (prompt too long), and when the engine failed.
        """
        ...

    async def load_weights(self, weights: WeightsRef) -> str:
        """Swaps the weights between two decode steps; running requests go on with the new ones.

        Returns the checksum of what was loaded. Raises RolloutError if it differs from the announced one, and
        WeightsElsewhereError if this machine cannot have them; the old weights then stay in use.
        """
        ...

    def stats(self) -> EngineStats:
        """Counters, for heartbeats and metrics."""
        ...

    async def close(self) -> None:
        """Stops; running requests raise RolloutError. Idempotent."""
        ...


@runtime_checkable
class SchemaEngine(RolloutEngine, Protocol):
    """An engine that can hold a response to a JSON schema.

    Tokens that the schema does not allow are banned, as those are that `top_k` leaves out: log-probabilities are the
    policy's own, of all tokens. It raises RolloutError, with the field `json_schema`, for one that it cannot read.
    """

    @property
    def holds_schemas(self) -> bool:
        """False for one that stands before another engine, which cannot."""
        ...


@runtime_checkable
class TransferTimed(RolloutEngine, Protocol):
    """An engine that tells how long it fetched and verified weights before it swapped them in."""

    @property
    def transfer_s(self) -> float:
        """The time of the last `load_weights` in which it went on with the old ones; 0 before the first."""
        ...


class Answers(Protocol):
    """The responses to requests that were made together."""

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        """The responses since the last call, by the number of their request; none once all were given."""
        ...


@runtime_checkable
class GroupEngine(RolloutEngine, Protocol):
    """An engine that takes several requests from one task, where a task for each would cost more than the tokens."""

    def generate_each(self, requests: Sequence[GenerationRequest]) -> AbstractAsyncContextManager[Answers]:
        """Responses as they come, each as `generate` would give or raise it. Leaving the context cancels the others.

        The caller bounds how many there are. A request that can never run is answered with its RolloutError, for its
        neighbours may be of other tasks.
        """
        ...


def check_lives(engine: RolloutEngine, name: str = "the rollout engine") -> None:
    """Returns if the engine, which is called by `name`, may answer again.

    Raises WorkError if it never will: another process opens a new one.
    """
    error = engine.stats().error
    if error:
        raise WorkError(f"{name} failed: {error}", fix="nothing: the explorer is started again")
