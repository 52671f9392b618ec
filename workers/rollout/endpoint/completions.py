"""`POST /v1/completions`: a bare text, or token ids, to be gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.rollout.endpoint.api_call import DONE, Answered, event
from rftd.workers.rollout.endpoint.call_error import CallError, unsupported
from rftd.workers.rollout.endpoint.draw_request import DrawRequest, checked_length, stops_of
from rftd.workers.rollout.endpoint.question import DrawSettings, QuestionPrompt, digest_of, text_of
from rftd.workers.rollout.endpoint.turns import TurnRecord
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response


class CompletionRequest(DrawRequest, frozen=True, kw_only=True):
    """The body of a call."""

    prompt: str | list[int | str]
    max_tokens: int | None = 16
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class TextQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `Question` for a text, or ids, without a chat template."""

    text: str | tuple[int, ...]
    choices: int
    settings: DrawSettings

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The ids; they go on from the turn whose ids they begin with, if there is one."""
        ids = model.bare_prompt(self.text) if isinstance(self.text, str) else list(self.text)
        return QuestionPrompt(ids, record.longest_prefix(ids))

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """A key that no conversation has: a completion is found by its ids."""
        return digest_of(b"completion", response.text.encode())


class CompletionCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the completion API."""

    question: TextQuestion
    given: CompletionRequest

    @classmethod
    def read(cls, body: bytes) -> CompletionCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(CompletionRequest).decode(body)
        if given.best_of not in (None, given.choices):
            raise unsupported("best_of", "best_of other than n is not supported")
        for param in ("echo", "suffix"):
            if getattr(given, param):
                raise unsupported(param, f"{param} is not supported")
        if given.logprobs is not None and given.logprobs > 1:
            raise unsupported("logprobs", "the engine tells the log-probability of the drawn token alone")
        settings = given.settings(checked_length(given.max_tokens, "max_tokens"), stops_of(given.stop))
        question = TextQuestion(text=_text_of(given.prompt), choices=given.choices, settings=settings)
        return cls(question=question, given=given)

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        return bool(self.given.stream)

    def whole(self, answered: Answered) -> bytes:
        """A `text_completion`."""
        choices = [self._choice(answered, index, each) for index, each in enumerate(answered.responses)]
        head = self.given.head(answered, "cmpl", "text_completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": answered.usage})

    def events(self, answered: Answered) -> Iterator[bytes]:
        """`text_completion`s, one for each answer."""
        head = self.given.head(answered, "cmpl", "text_completion")
        for index, response in enumerate(answered.responses):
            yield event({**head, "choices": [self._choice(answered, index, response)]})
        if self.given.with_usage:
            yield event({**head, "choices": [], "usage": answered.usage})
        yield DONE

    def _choice(self, answered: Answered, index: int, response: Response) -> dict[str, Any]:
        text = text_of(answered.prompt, response, self.question.settings.stop)
        logprobs = None
        if self.given.logprobs is not None:
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
