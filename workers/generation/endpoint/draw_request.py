"""`DrawRequest`: the fields that a chat and a bare completion share, and what each of them may be."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.workers.generation.endpoint.api_call import Begun
from rftd.workers.generation.endpoint.call_error import CallError, unsupported
from rftd.workers.generation.endpoint.offered_tools import OfferedTools
from rftd.workers.generation.endpoint.question import DrawSettings, HeldAnswer

CHOICES: Final = 64
"""The most answers of one call."""
ANY_OBJECT: Final = '{"type":"object"}'
"""The schema of what a call names `json_object`."""


class StreamOptions(msgspec.Struct, frozen=True):
    """How the events of a stream look."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Has no effect."""


class DrawRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How answers are drawn and told. `seed` and `user` have no effect: a rollout is drawn by its own seed."""

    model: str = ""
    """Any name: there is one model."""
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    user: str | None = None

    # Not OpenAI's; vLLM and SGLang take them too.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None

    @property
    def choices(self) -> int:
        """How many answers are asked for. Raises CallError."""
        if self.n is not None and not 1 <= self.n <= CHOICES:
            raise CallError(400, f"n is {self.n}; it must be from 1 to {CHOICES}", param="n")
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """True if the last event tells the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def settings(self, max_tokens: int | None, stops: tuple[str, ...], held: HeldAnswer | None = None) -> DrawSettings:
        """How the tokens are to be drawn. Raises CallError."""
        if self.frequency_penalty:
            raise unsupported("frequency_penalty", "the engine draws without frequency_penalty; use repetition_penalty")
        return DrawSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=_biases_of(self.logit_bias),
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            stop=stops,
            held=held,
        )

    def head(self, begun: Begun, id: str, kind: str) -> dict[str, Any]:
        """What every object of an answer begins with; a stream's say that their usage is not told yet."""
        head: dict[str, Any] = {
            "id": id,
            "object": kind,
            "created": begun.created_s,
            "model": self.model,
            "system_fingerprint": begun.fingerprint,
        }
        return {**head, "usage": None} if self.stream and self.with_usage else head


def checked_length(tokens: int | None, param: str) -> int | None:
    """The most tokens that are asked for. Raises CallError."""
    if tokens is not None and tokens < 1:
        raise CallError(400, f"{param} is {tokens}; it must be at least 1", param=param)
    return tokens


def held_answer(kind: str, schema: dict[str, Any] | None, tools: OfferedTools, param: str) -> HeldAnswer | None:
    """The form that the answer to a call is held to; None for any text. Raises CallError, which names `param`."""
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise unsupported(param, f"{param} is {kind!r}; it can be text, json_object or json_schema")
    if kind == "json_schema" and schema is None:
        raise CallError(400, f"{param} is json_schema, and has no schema", param=param)
    if tools.schemas and tools.choice != "none":
        raise unsupported(param, "an answer of this form calls no tool; leave tools out, or set tool_choice to none")
    return HeldAnswer(ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode(), param)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop texts in a request."""
    given = [stop] if isinstance(stop, str) else stop or []
    return tuple(each for each in given if each)


def _biases_of(given: dict[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    if given is None:
        return None
    if not all(key.isascii() and key.isdigit() for key in given):
        raise CallError(400, "logit_bias has a key that is no token id", param="logit_bias")
    return tuple((int(key), value) for key, value in given.items())
