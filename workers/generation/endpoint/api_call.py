"""`ApiCall`: a question with the form that its API gives to answers, and `Answered`: what was drawn for it.

An answer is told whole, or as events by an `AnswerEvents`, which may begin while it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.generation.endpoint.question import Question, QuestionPrompt
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response

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

    def id_of(self, begun: Begun) -> str:
        """The id of the answer, as the client sees it."""
        ...

    def whole(self, answered: Answered) -> bytes:
        """The answer as one JSON object."""
        ...

    def events(self, begun: Begun) -> AnswerEvents:
        """What writes the answer as server-sent events."""
        ...


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is being drawn."""

    id: str
    """A name of the call, unlike any other."""
    created_s: int
    prompt: QuestionPrompt
    tokens_of: Model
    """The model that draws; its tokenizer reads them."""
    version: tuple[int, int]
    """The weights that drew the last token, as far as that is known."""

    @property
    def fingerprint(self) -> str:
        """The name of those weights."""
        return "rftd-{}.{}".format(*self.version)


class Answered(Begun, frozen=True, kw_only=True):
    """What was drawn for a call."""

    responses: tuple[Response, ...]

    @classmethod
    def of(cls, begun: Begun, responses: Sequence[Response]) -> Answered:
        """The answer that is complete."""
        last = responses[-1].spans[-1]
        told = {**msgspec.structs.asdict(begun), "version": (last.version, last.generation)}
        return cls(**told, responses=tuple(responses))

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens, as the API counts them."""
        drawn = sum(len(each.tokens) for each in self.responses)
        told = len(self.prompt.ids)
        return {"prompt_tokens": told, "completion_tokens": drawn, "total_tokens": told + drawn}


class AnswerEvents(Protocol):
    """Writes one answer as events, to one client."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterable[bytes]:
        """The events of what was drawn next for a choice; none while it cannot be shown yet."""
        ...

    def rest(self, answered: Answered) -> Iterable[bytes]:
        """The events that are still missing, now that the answer is complete."""
        ...


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """One server-sent event that has its type for a name."""
    return b"event: %s\n%s" % (body["type"].encode(), event(body))
