"""`POST /v1/completions`: continues a bare text or token ids."""

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
from rftd.workers.generation.endpoint.turn_record import TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


class CompletionRequest(DrawRequest, frozen=True, kw_only=True):
    """The body of a call: a prompt as text or token ids, with settings."""

    prompt: str | list[int | str]
    """Text or token ids to continue."""
    max_tokens: int | None = 16
    """Maximum tokens of the answer."""
    best_of: int | None = None
    """Refused unless equal to the number of choices."""
    logprobs: int | None = None
    """Number of log-probabilities for each token; None: the answer has none; more than 1 is refused."""
    echo: bool | None = None
    """Refused: the prompt is never repeated."""
    suffix: str | None = None
    """Refused: text behind the answer."""


class TextQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `Question` for a text, or ids, without a chat template."""

    text: str | tuple[int, ...]
    """Text or token ids to continue."""
    choices: int
    """Number of answers to draw."""
    settings: DrawSettings
    """Sampling settings."""

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """Returns the ids, as a continuation of the longest earlier turn at their beginning, if any."""
        ids = model.bare_prompt(self.text) if isinstance(self.text, str) else list(self.text)
        return QuestionPrompt(ids, record.longest_prefix(ids))

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """Returns a key that no conversation has, because later calls find a completion by its ids."""
        return digest_of(b"completion", response.text.encode())


class CompletionCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the completion API."""

    question: TextQuestion
    """The question to draw an answer for."""
    request: CompletionRequest
    """The decoded body."""

    @classmethod
    def read(cls, body: bytes) -> CompletionCall:
        """Reads the call from a body. Raises CallError, or msgspec.MsgspecError for a malformed body."""
        request = json_decoder(CompletionRequest).decode(body)
        if request.best_of not in (None, request.choices):
            raise unsupported("best_of", "best_of other than n is not supported")
        for param in ("echo", "suffix"):
            if getattr(request, param):
                raise unsupported(param, f"{param} is not supported")
        if request.logprobs is not None and request.logprobs > 1:
            raise unsupported("logprobs", "the engine returns the log-probability of the drawn token only")
        settings = request.settings(checked_length(request.max_tokens, "max_tokens"), stops_of(request.stop))
        question = TextQuestion(text=_prompt_of(request.prompt), choices=request.choices, settings=settings)
        return cls(question=question, request=request)

    @property
    def stream(self) -> bool:
        """True if the client requests the answer as events."""
        return bool(self.request.stream)

    def id_of(self, begun: Begun) -> str:
        """Returns the id of the answer in replies to the client."""
        return f"cmpl-{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """Returns the complete answer as a `text_completion` object, encoded as JSON."""
        choices = []
        for index, response in enumerate(answered.responses):
            text = text_of(answered.prompt, response, self.question.settings.stop)
            choices.append(
                self.choice(index, text, self.logprobs(answered, response.tokens, response.logprobs), response.finish)
            )
        head = self.request.head(answered, self.id_of(answered), "text_completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": answered.usage})

    def events(self, begun: Begun) -> CompletionEvents:
        """Returns a writer of `text_completion` events."""
        return CompletionEvents(self, begun)

    def choice(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        """Returns a choice of the answer, or a part of a choice."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(
        self, begun: Begun, tokens: Sequence[int], logprobs: Sequence[float], begin: int = 0
    ) -> dict[str, Any] | None:
        """Returns the log-probabilities of tokens in the API's form, with text offsets counted from `begin`."""
        if self.request.logprobs is None:
            return None
        texts = [begun.tokens_of.tokenizer.decode([token]) for token in tokens]
        offsets = list(accumulate(map(len, texts[:-1]), initial=begin))
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}


class CompletionEvents:
    """Implements `AnswerEvents` for the completion API."""

    def __init__(self, call: CompletionCall, begun: Begun) -> None:
        """Writes the answer `begun` to `call`."""
        self._call = call
        self._begun = begun
        self._head = call.request.head(begun, call.id_of(begun), "text_completion")
        """First fields of every event."""
        question = call.question
        self._texts = [
            ShownText(begun.tokens_of.tokenizer.decode, stops=question.settings.stop) for _ in range(question.choices)
        ]
        """Tracker of each choice's text."""
        self._drawn: list[list[tuple[int, float]]] = [[] for _ in range(question.choices)]
        """Token and log-probability of each choice's drawn tokens."""
        self._sent = [0] * question.choices
        """Number of tokens of each choice already sent with their log-probabilities."""
        self._offsets = [0] * question.choices
        """Text offset of each choice's next token to send."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """Yields the event of the text newly certain, if any."""
        self._drawn[index] += zip(tokens, logprobs, strict=True)
        text = self._texts[index].add(tokens).text
        if text:
            yield self._choice_event(index, text, None)

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """Yields the remaining text of each choice with its finish reason; then the usage."""
        for index, response in enumerate(answered.responses):
            self._drawn[index] = list(zip(response.tokens, response.logprobs, strict=True))
            text = text_of(answered.prompt, response, self._call.question.settings.stop)
            yield self._choice_event(index, self._texts[index].finish(text).text, response.finish)
        if self._call.request.with_usage:
            yield event({**self._head, "choices": [], "usage": answered.usage})
        yield DONE

    def _choice_event(self, index: int, text: str, finish: str | None) -> bytes:
        """Returns the event with a part of one choice, and the log-probabilities not sent before."""
        untold = self._drawn[index][self._sent[index] :]
        self._sent[index] += len(untold)
        tokens = [token for token, _ in untold]
        logprobs = self._call.logprobs(self._begun, tokens, [logprob for _, logprob in untold], self._offsets[index])
        if logprobs is not None:
            self._offsets[index] += sum(map(len, logprobs["tokens"]))
        return event({**self._head, "choices": [self._call.choice(index, text, logprobs, finish)]})


def _prompt_of(prompt: str | list[int | str]) -> str | tuple[int, ...]:
    """Returns the prompt as a text or as ids. Raises CallError for several prompts or a negative id."""
    if isinstance(prompt, str):
        return prompt
    texts = [text for text in prompt if isinstance(text, str)]
    if not texts:
        ids = tuple(token for token in prompt if isinstance(token, int))
        if any(token < 0 for token in ids):
            raise CallError(400, "prompt has a negative token id", param="prompt")
        return ids
    if len(texts) > 1:
        raise unsupported("prompt", "several prompts in one call are not supported; make a call for each")
    return texts[0]
