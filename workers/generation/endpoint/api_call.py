"""`ApiCall`: a question and its API's form of answers; `Answered`: the responses drawn for the question.

An answer is sent whole, or as events by an `AnswerEvents` while it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.generation.endpoint.question import Question, QuestionPrompt
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response

DONE: Final = b"data: [DONE]\n\n"
"""Last line of a stream in OpenAI's older APIs."""


class ApiCall(Protocol):
    """One call of an API, read and checked, with the API's form of answers."""

    @property
    def question(self) -> Question:
        """The question to draw an answer for."""
        ...

    @property
    def stream(self) -> bool:
        """True if the client requests the answer as events."""
        ...

    def id_of(self, begun: Begun) -> str:
        """Returns the id of the answer in replies to the client."""
        ...

    def whole(self, answered: Answered) -> bytes:
        """Returns the answer as one JSON object."""
        ...

    def events(self, begun: Begun) -> AnswerEvents:
        """Returns a writer of the answer as server-sent events."""
        ...


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An answer being drawn: its id, prompt, model and weights."""

    id: str
    """Unique name of the call."""
    created_s: int
    """Time of the call, in seconds since 1970."""
    prompt: QuestionPrompt
    """Prompt of the answer."""
    tokens_of: Model
    """The drawing model, with the tokenizer of the answer."""
    version: tuple[int, int]
    """Version and generation of the weights behind the last token, as far as known."""

    @property
    def fingerprint(self) -> str:
        """Name of the weights in `version`, as OpenAI's `system_fingerprint`."""
        return "rftd-{}.{}".format(*self.version)


class Answered(Begun, frozen=True, kw_only=True):
    """A complete answer to a call: the responses of all its choices."""

    responses: tuple[Response, ...]
    """The responses, one for each choice."""

    @classmethod
    def of(cls, begun: Begun, responses: Sequence[Response]) -> Answered:
        """Returns the completed answer, with the version of the last token's weights."""
        last = responses[-1].spans[-1]
        fields = {**msgspec.structs.asdict(begun), "version": (last.version, last.generation)}
        return cls(**fields, responses=tuple(responses))

    @property
    def usage(self) -> dict[str, int]:
        """Token counts under the API's names."""
        drawn = sum(len(response.tokens) for response in self.responses)
        prompt_tokens = len(self.prompt.ids)
        return {"prompt_tokens": prompt_tokens, "completion_tokens": drawn, "total_tokens": prompt_tokens + drawn}


class AnswerEvents(Protocol):
    """Writes one answer as events, for one client."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterable[bytes]:
        """Returns the events for the next tokens of a choice; none while no new text is certain."""
        ...

    def rest(self, answered: Answered) -> Iterable[bytes]:
        """Returns the remaining events of a complete answer."""
        ...


def event(body: object) -> bytes:
    """Encodes one server-sent event with a JSON body and no name."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(body: Mapping[str, Any]) -> bytes:
    """Encodes one server-sent event, named after its type."""
    return b"event: %s\n%s" % (body["type"].encode(), event(body))
