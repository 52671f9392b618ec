"""`POST /v1/completions`: a bare text, or token ids, to be gone on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.generation.endpoint.api_call import DONE, Answered, Begun, event
from rftd.workers.generation.endpoint.call_error import CallError, unsupported
from rftd.workers.generation.endpoint.draw_request import DrawRequest, checked_length, stops_of
from rftd.workers.generation.endpoint.question import DrawSettings, QuestionPrompt, digest_of, text_of
from rftd.workers.generation.endpoint.shown_text import ShownText
from rftd.workers.generation.endpoint.turns import TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


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

    def id_of(self, begun: Begun) -> str:
        """The id of the answer, as the client sees it."""
        return f"cmpl-{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """A `text_completion`."""
        choices = []
        for index, each in enumerate(answered.responses):
            text = text_of(answered.prompt, each, self.question.settings.stop)
            choices.append(self.choice(index, text, self.logprobs(answered, each.tokens, each.logprobs), each.finish))
        head = self.given.head(answered, self.id_of(answered), "text_completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": answered.usage})

    def events(self, begun: Begun) -> CompletionEvents:
        """`text_completion`s."""
        return CompletionEvents(self, begun)

    def choice(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        """A choice of the answer, or a part of it."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(
        self, begun: Begun, tokens: Sequence[int], logprobs: Sequence[float], begin: int = 0
    ) -> dict[str, Any] | None:
        """What is told of the log-probabilities of tokens, the first of which is at `begin` in the text."""
        if self.given.logprobs is None:
            return None
        texts = [begun.tokens_of.tokenizer.decode([token]) for token in tokens]
        places = list(accumulate(map(len, texts[:-1]), initial=begin))
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": places}


class CompletionEvents:
    """Implements `AnswerEvents` for the completion API."""

    def __init__(self, call: CompletionCall, begun: Begun) -> None:
        self._call = call
        self._begun = begun
        self._head = call.given.head(begun, call.id_of(begun), "text_completion")
        question = call.question
        self._texts = [
            ShownText(begun.tokens_of.tokenizer.decode, stops=question.settings.stop) for _ in range(question.choices)
        ]
        self._drawn: list[list[tuple[int, float]]] = [[] for _ in range(question.choices)]
        self._told = [0] * question.choices
        """The number of tokens of each choice that an event told the log-probabilities of."""
        self._places = [0] * question.choices
        """Where the next of them is in the text."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """The text that may be shown, if there is any."""
        self._drawn[index] += zip(tokens, logprobs, strict=True)
        text = self._texts[index].more(tokens).text
        if text:
            yield self._event(index, text, None)

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """The rest of each choice's text, with why it ended; and the usage."""
        for index, response in enumerate(answered.responses):
            self._drawn[index] = list(zip(response.tokens, response.logprobs, strict=True))
            text = text_of(answered.prompt, response, self._call.question.settings.stop)
            yield self._event(index, self._texts[index].rest(text).text, response.finish)
        if self._call.given.with_usage:
            yield event({**self._head, "choices": [], "usage": answered.usage})
        yield DONE

    def _event(self, index: int, text: str, finish: str | None) -> bytes:
        untold = self._drawn[index][self._told[index] :]
        self._told[index] += len(untold)
        tokens = [token for token, _ in untold]
        told = self._call.logprobs(self._begun, tokens, [logprob for _, logprob in untold], self._places[index])
        if told is not None:
            self._places[index] += sum(map(len, told["tokens"]))
        return event({**self._head, "choices": [self._call.choice(index, text, told, finish)]})


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
