"""`Question`: the content of a call, independent of its API."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.endpoint.answer_form import AnswerForm
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


class HeldAnswer(msgspec.Struct, frozen=True):
    """A JSON schema that the answer has to obey, with the request parameter that demands it."""

    json_schema: str
    """JSON schema as text."""
    param: str
    """Name of the call's parameter for the constraint."""


class DrawSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of a call; None stands for the experiment's setting."""

    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus size."""
    top_k: int | None = None
    """Number of likeliest tokens kept."""
    min_p: float | None = None
    """Least probability, as a share of the likeliest token's."""
    repetition_penalty: float | None = None
    """Penalty of tokens present in prompt or answer."""
    presence_penalty: float | None = None
    """Penalty of tokens drawn before."""
    logit_bias: tuple[tuple[int, float], ...] | None = None
    """Pairs of a token id and the amount added to its logit."""
    min_tokens: int | None = None
    """Minimum tokens of the answer."""
    max_tokens: int | None = None
    """Maximum tokens of the answer."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    held: HeldAnswer | None = None
    """Constraint on the answer; None: any text."""

    def over(self, base: SamplingSpec, *, lengths_only: bool) -> SamplingSpec:
        """Returns the sampling settings `base` overridden by the call's; `lengths_only` overrides only the limit and
        the stops.
        """
        changed: dict[str, Any] = {} if lengths_only else dict(msgspec.structs.asdict(self))
        changed.pop("held", None)
        changed["max_tokens"] = self.max_tokens
        changed["stop"] = (*base.stop, *self.stop)
        return msgspec.structs.replace(
            base, **{name: setting for name, setting in changed.items() if setting is not None}
        )


class QuestionPrompt(msgspec.Struct, frozen=True):
    """The prompt of a question, with the rules for reading its answer."""

    ids: Sequence[int]
    """Ids of the prompt."""
    parent: RecordedTurn | None
    """Earlier turn with ids equal to the beginning of the prompt."""
    text: str = ""
    """Forced beginning of the answer: the last of `ids`, and the first text for the client."""
    form: AnswerForm = AnswerForm()
    """Form for splitting the answer."""
    in_thought: bool = False
    """True: the answer begins within a thought."""
    ends: tuple[str, ...] = ()
    """Additional stop texts."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Decoder of the answer's text from the drawn ids; None: the response's own text."""


class Question(Protocol):
    """The content of one call, read and checked: choices, settings and prompt."""

    @property
    def choices(self) -> int:
        """Number of answers to draw."""
        ...

    @property
    def settings(self) -> DrawSettings:
        """Sampling settings of the call."""
        ...

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """Returns the prompt, continuing the ids of an earlier turn that the call repeats."""
        ...

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """Returns the key by which a later call, repeating this conversation with the answer, finds the
        recorded turn.
        """
        ...


def text_of(prompt: QuestionPrompt, response: Response, stops: Sequence[str]) -> str:
    """Returns an answer's text for the client, cut before the stop text that ended the answer."""
    drawn = response.text if prompt.decode is None else prompt.decode(response.tokens)
    text = prompt.text + drawn
    if response.finish == "stop":
        ends = [at for at in (text.find(stop, len(prompt.text)) for stop in stops if stop) if at >= 0]
        text = text[: min(ends, default=len(text))]
    return text


def digest_of(*parts: bytes) -> bytes:
    """Returns a key for parts in their order."""
    digest = hashlib.sha256()
    for piece in parts:
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.digest()
