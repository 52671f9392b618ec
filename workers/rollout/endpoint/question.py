"""`Question`: what a call asks, whatever API it came by, and `Answered`: what was drawn for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from rftd.streams.spec import SamplingSpec
from rftd.workers.rollout.endpoint.call_error import CallError
from rftd.workers.rollout.endpoint.turns import RecordedTurn, TurnRecord
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response

CHOICES: int = 64
"""The most answers of one call."""


class DrawSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a call wants its tokens drawn; None is what the experiment says."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def over(self, base: SamplingSpec, *, lengths_only: bool) -> SamplingSpec:
        """The experiment's settings with those of the call; `lengths_only` takes of these its limit and stops alone."""
        changed: dict[str, Any] = {} if lengths_only else dict(msgspec.structs.asdict(self))
        changed["max_tokens"] = self.max_tokens
        changed["stop"] = (*base.stop, *self.stop)
        return msgspec.structs.replace(base, **{name: each for name, each in changed.items() if each is not None})


class QuestionPrompt(msgspec.Struct, frozen=True):
    """The ids to ask with."""

    ids: Sequence[int]
    parent: RecordedTurn | None
    """The turn whose ids they begin with."""
    text: str = ""
    """What the answer is made to begin with: the last of `ids`, and the first of what the client sees."""


class Question(Protocol):
    """One call, read and checked."""

    @property
    def choices(self) -> int:
        """How many answers are drawn."""
        ...

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        ...

    @property
    def settings(self) -> DrawSettings:
        """How the tokens are to be drawn."""
        ...

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The ids; they go on from an earlier turn's where the call says that it came before."""
        ...

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """The key under which a later call finds this answer."""
        ...

    def whole(self, answered: Answered) -> bytes:
        """The answer as one JSON object."""
        ...

    def events(self, answered: Answered) -> Iterable[bytes]:
        """The answer as server-sent events."""
        ...


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn for a call."""

    id: str
    """A name of the call, unlike any other."""
    created_s: int
    prompt: QuestionPrompt
    responses: tuple[Response, ...]
    tokens_of: Model
    """The model that drew; its tokenizer reads them."""

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens, as the API counts them."""
        drawn = sum(len(each.tokens) for each in self.responses)
        told = len(self.prompt.ids)
        return {"prompt_tokens": told, "completion_tokens": drawn, "total_tokens": told + drawn}

    @property
    def fingerprint(self) -> str:
        """The weights that drew the last token."""
        span = self.responses[-1].spans[-1]
        return f"rftd-{span.version}.{span.generation}"


def text_of(prompt: QuestionPrompt, response: Response, stops: Sequence[str]) -> str:
    """What the client sees of an answer: it ends before the stop text that ended it."""
    text = prompt.text + response.text
    if response.finish == "stop":
        ends = [at for at in (text.find(stop, len(prompt.text)) for stop in stops if stop) if at >= 0]
        text = text[: min(ends, default=len(text))]
    return text


def digest_of(*parts: bytes) -> bytes:
    """A key for parts in their order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


DONE: bytes = b"data: [DONE]\n\n"


def checked_choices(choices: int | None, param: str = "n") -> int:
    """How many answers are asked for. Raises CallError."""
    if choices is not None and not 1 <= choices <= CHOICES:
        raise CallError(400, f"{param} is {choices}; it must be from 1 to {CHOICES}", param=param)
    return choices or 1


def checked_length(tokens: int | None, param: str) -> int | None:
    """The most tokens that are asked for. Raises CallError."""
    if tokens is not None and tokens < 1:
        raise CallError(400, f"{param} is {tokens}; it must be at least 1", param=param)
    return tokens


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop texts in a request."""
    given = [stop] if isinstance(stop, str) else stop or []
    return tuple(each for each in given if each)


def biases_of(given: dict[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    """The token biases in a request. Raises CallError for a key that is no token id."""
    if given is None:
        return None
    if not all(key.isascii() and key.isdigit() for key in given):
        raise CallError(400, "logit_bias has a key that is no token id", param="logit_bias")
    return tuple((int(key), value) for key, value in given.items())
