"""`ApiCall`: a question with the form that its API gives to answers, and `Answered`: what was drawn for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.rollout.endpoint.question import Question, QuestionPrompt
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response

DONE: Final = b"data: [DONE]\n\n"
"""What ends a stream of OpenAI's older APIs."""


class ApiCall(Protocol):
    """One call, read and checked."""

    @property
    def question(self) -> Question:
        """What is to be drawn."""
        ...

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
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


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event that has its type for a name."""
    return b"event: %s\n%s" % (body["type"].encode(), event(body))
