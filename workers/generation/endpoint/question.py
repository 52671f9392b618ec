"""`Question`: what a call asks, whatever API it came by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.endpoint.answer_form import AnswerForm
from rftd.workers.generation.endpoint.turns import RecordedTurn, TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


class HeldAnswer(msgspec.Struct, frozen=True):
    """The form that an answer is held to."""

    json_schema: str
    """As text."""
    param: str
    """The call's name for it."""


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
    held: HeldAnswer | None = None
    """None: the answer is any text."""

    def over(self, base: SamplingSpec, *, lengths_only: bool) -> SamplingSpec:
        """The experiment's settings with those of the call; `lengths_only` takes of these its limit and stops alone."""
        changed: dict[str, Any] = {} if lengths_only else dict(msgspec.structs.asdict(self))
        changed.pop("held", None)
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
    form: AnswerForm = AnswerForm()
    """The form by which the answer is taken apart."""
    in_thought: bool = False
    """The answer begins within a thought."""
    ends: tuple[str, ...] = ()
    """More texts that end the answer."""
    decode: Callable[[Sequence[int]], str] | None = None
    """The decoder of the answer's text from the drawn ids; None: the text is the response's."""


class Question(Protocol):
    """One call, read and checked."""

    @property
    def choices(self) -> int:
        """How many answers are drawn."""
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


def text_of(prompt: QuestionPrompt, response: Response, stops: Sequence[str]) -> str:
    """What the client sees of an answer: it ends before the stop text that ended it."""
    drawn = response.text if prompt.decode is None else prompt.decode(response.tokens)
    text = prompt.text + drawn
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
