"""`DrawRequest`: the fields shared by chats and bare completions, with their limits."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.workers.generation.endpoint.api_call import Begun
from rftd.workers.generation.endpoint.call_error import CallError, unsupported
from rftd.workers.generation.endpoint.offered_tools import OfferedTools
from rftd.workers.generation.endpoint.question import DrawSettings, HeldAnswer

CHOICES: Final = 64
"""Maximum answers of one call."""
ANY_OBJECT: Final = '{"type":"object"}'
"""JSON schema of the response format `json_object`."""


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream's events."""

    include_usage: bool = False
    """True: the last event has the token counts."""
    include_obfuscation: bool = False
    """No effect."""


class DrawRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the draws and the reply. `seed` and `user` have no effect: a rollout has its own seed."""

    model: str = ""
    """Any name: there is one model."""
    n: int | None = None
    """Number of answers."""
    stream: bool | None = None
    """True: the answer is sent as events."""
    stream_options: StreamOptions | None = None
    """Options of the events."""
    max_tokens: int | None = None
    """Maximum tokens of the answer."""
    stop: str | list[str] | None = None
    """Text or texts that end the answer and are hidden from the client."""
    temperature: float | None = None
    """Sampling temperature; None: the temperature of the experiment."""
    top_p: float | None = None
    """Nucleus size."""
    presence_penalty: float | None = None
    """Penalty of tokens drawn before."""
    frequency_penalty: float | None = None
    """Refused unless 0."""
    logit_bias: dict[str, float] | None = None
    """Amount added to logits, by token id."""
    seed: int | None = None
    """No effect."""
    user: str | None = None
    """No effect."""

    # Extensions of OpenAI's API, shared with vLLM and SGLang.
    top_k: int | None = None
    """Number of likeliest tokens kept."""
    min_p: float | None = None
    """Least probability, as a share of the likeliest token's."""
    repetition_penalty: float | None = None
    """Penalty of tokens present in prompt or answer."""
    min_tokens: int | None = None
    """Minimum tokens of the answer."""

    @property
    def choices(self) -> int:
        """Number of requested answers. Raises CallError."""
        if self.n is not None and not 1 <= self.n <= CHOICES:
            raise CallError(400, f"n is {self.n}; it must be from 1 to {CHOICES}", param="n")
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """True if the last event has the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def settings(
        self, max_tokens: int | None, stops: tuple[str, ...], constraint: HeldAnswer | None = None
    ) -> DrawSettings:
        """Returns the sampling settings of the call. Raises CallError."""
        if self.frequency_penalty:
            raise unsupported("frequency_penalty", "frequency_penalty is not supported; use repetition_penalty")
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
            held=constraint,
        )

    def head(self, begun: Begun, id: str, kind: str) -> dict[str, Any]:
        """Returns the first fields of every object of an answer; in a stream with usage, `usage` is null until the last
        event.
        """
        head: dict[str, Any] = {
            "id": id,
            "object": kind,
            "created": begun.created_s,
            "model": self.model,
            "system_fingerprint": begun.fingerprint,
        }
        return {**head, "usage": None} if self.stream and self.with_usage else head


def checked_length(tokens: int | None, param: str) -> int | None:
    """Returns the requested maximum of tokens. Raises CallError if it is below 1."""
    if tokens is not None and tokens < 1:
        raise CallError(400, f"{param} is {tokens}; it must be at least 1", param=param)
    return tokens


def held_answer(kind: str, schema: dict[str, Any] | None, tools: OfferedTools, param: str) -> HeldAnswer | None:
    """Returns the constraint on a call's answer; None for any text. Raises CallError naming `param`."""
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise unsupported(param, f"{param} is {kind!r}; it can be text, json_object or json_schema")
    if kind == "json_schema" and schema is None:
        raise CallError(400, f"{param} is json_schema, but has no schema", param=param)
    if tools.schemas and tools.choice != "none":
        raise unsupported(
            param, "an answer of this form cannot call tools; leave tools out, or set tool_choice to none"
        )
    return HeldAnswer(ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode(), param)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Returns the stop texts of a request, without empty ones."""
    stops = [stop] if isinstance(stop, str) else stop or []
    return tuple(text for text in stops if text)


def _biases_of(biases: dict[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    """Returns the biases with integer ids. Raises CallError for other keys."""
    if biases is None:
        return None
    if not all(key.isascii() and key.isdigit() for key in biases):
        raise CallError(400, "logit_bias has a key that is not a token id", param="logit_bias")
    return tuple((int(key), bias) for key, bias in biases.items())
