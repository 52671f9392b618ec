"""`POST /v1/completions`: a bare text, or token ids, to be gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.rollout.endpoint.call_error import CallError, unsupported
from rftd.workers.rollout.endpoint.chat_completions import StreamOptions
from rftd.workers.rollout.endpoint.question import (
    DONE,
    Answered,
    DrawSettings,
    QuestionPrompt,
    biases_of,
    checked_choices,
    checked_length,
    digest_of,
    event,
    stops_of,
    text_of,
)
from rftd.workers.rollout.endpoint.turns import TurnRecord
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. `seed` and `user` are taken and have no effect."""

    prompt: str | list[int | str]
    model: str = ""
    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = 16
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    user: str | None = None


class CompletionCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `Question` for the completion API."""

    text: str | tuple[int, ...]
    model: str
    choices: int
    stream: bool
    with_usage: bool
    with_logprobs: bool
    settings: DrawSettings

    @classmethod
    def read(cls, body: bytes) -> CompletionCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(CompletionRequest).decode(body)
        choices = checked_choices(given.n)
        if given.best_of not in (None, choices):
            raise unsupported("best_of", "best_of other than n is not supported")
        for param in ("echo", "suffix", "frequency_penalty"):
            if getattr(given, param):
                raise unsupported(param, f"{param} is not supported")
        if given.logprobs is not None and given.logprobs > 1:
            raise unsupported("logprobs", "the engine tells the log-probability of the drawn token alone")
        return cls(
            text=_text_of(given.prompt),
            model=given.model,
            choices=choices,
            stream=bool(given.stream),
            with_usage=given.stream_options is not None and given.stream_options.include_usage,
            with_logprobs=given.logprobs is not None,
            settings=DrawSettings(
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=given.top_k,
                min_p=given.min_p,
                repetition_penalty=given.repetition_penalty,
                presence_penalty=given.presence_penalty,
                logit_bias=biases_of(given.logit_bias),
                min_tokens=given.min_tokens,
                max_tokens=checked_length(given.max_tokens, "max_tokens"),
                stop=stops_of(given.stop),
            ),
        )

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The ids; they go on from the turn whose ids they begin with, if there is one."""
        ids = model.bare_prompt(self.text) if isinstance(self.text, str) else list(self.text)
        return QuestionPrompt(ids, record.longest_prefix(ids))

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """A key that no conversation has: a completion is found by its ids."""
        return digest_of(b"completion", response.text.encode())

    def whole(self, answered: Answered) -> bytes:
        """A `text_completion`."""
        choices = [self._choice(answered, index, each) for index, each in enumerate(answered.responses)]
        return msgspec.json.encode({**self._head(answered), "choices": choices, "usage": answered.usage})

    def events(self, answered: Answered) -> Iterator[bytes]:
        """`text_completion`s, one for each answer."""
        head = self._head(answered)
        if self.with_usage:
            head["usage"] = None
        for index, response in enumerate(answered.responses):
            yield event({**head, "choices": [self._choice(answered, index, response)]})
        if self.with_usage:
            yield event({**head, "choices": [], "usage": answered.usage})
        yield DONE

    def _head(self, answered: Answered) -> dict[str, Any]:
        return {
            "id": f"cmpl-{answered.id}",
            "object": "text_completion",
            "created": answered.created_s,
            "model": self.model,
            "system_fingerprint": answered.fingerprint,
        }

    def _choice(self, answered: Answered, index: int, response: Response) -> dict[str, Any]:
        text = text_of(answered.prompt, response, self.settings.stop)
        logprobs = None
        if self.with_logprobs:
            tokens = [answered.tokens_of.tokenizer.decode([token]) for token in response.tokens]
            places = [0, *accumulate(map(len, tokens[:-1]))]
            logprobs = {
                "tokens": tokens,
                "token_logprobs": response.logprobs,
                "top_logprobs": None,
                "text_offset": places,
            }
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": response.finish}


def _text_of(prompt: str | list[int | str]) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    texts = [each for each in prompt if isinstance(each, str)]
    if not texts:
        ids = tuple(each for each in prompt if isinstance(each, int))
        if any(each < 0 for each in ids):
            raise CallError(400, "prompt has a negative token id", param="prompt")
        return ids
    if len(texts) > 1:
        raise unsupported("prompt", "several prompts in one call are not supported; make a call for each")
    return texts[0]
