"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.generation.endpoint.api_call import DONE, Answered, Begun, event
from rftd.workers.generation.endpoint.call_error import unsupported
from rftd.workers.generation.endpoint.chat_message import ChatMessage, messages_of
from rftd.workers.generation.endpoint.conversation import AssistantTurn, ChatQuestion
from rftd.workers.generation.endpoint.draw_request import DrawRequest, checked_length, held_answer, stops_of
from rftd.workers.generation.endpoint.offered_tools import FunctionSchema, OfferedTools, ToolSchema
from rftd.workers.generation.endpoint.shown_text import ShownParts, ShownText


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` of one tool."""

    function: FunctionSchema
    """The function to call."""
    type: Literal["function"] = "function"
    """Always `function`."""


class JsonSchema(msgspec.Struct, frozen=True):
    """A schema with a name. The answer obeys the schema, `strict` or not."""

    name: str = ""
    """Name of the schema."""
    schema: dict[str, Any] | None = None
    """The schema; None: any JSON object."""
    description: str | None = None
    """Description, not used."""
    strict: bool | None = None
    """No effect: the answer always obeys the schema."""


class ResponseFormat(msgspec.Struct, frozen=True):
    """The requested form of the answer: `text`, `json_object` or `json_schema`."""

    type: str
    """`text`, `json_object` or `json_schema`."""
    json_schema: JsonSchema | None = None
    """The schema, for `json_schema`."""


class ChatRequest(DrawRequest, frozen=True, kw_only=True):
    """The body of a call. Fields of the last paragraph are accepted without effect."""

    messages: list[ChatMessage]
    """The conversation."""
    max_completion_tokens: int | None = None
    """Maximum tokens of the answer."""
    logprobs: bool | None = None
    """True: log-probabilities are requested."""
    top_logprobs: int | None = None
    """Refused unless 0: only drawn tokens have a log-probability."""
    tools: list[ToolSchema] | None = None
    """The callable tools."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """Choice among the tools: optional, required, forbidden, or one tool by name; None: optional."""
    parallel_tool_calls: bool | None = None
    """False: an answer has at most one call."""
    response_format: ResponseFormat | None = None
    """Requested form of the answer."""

    store: bool | None = None
    """No effect."""
    metadata: dict[str, Any] | None = None
    """No effect."""
    service_tier: str | None = None
    """No effect."""
    reasoning_effort: str | None = None
    """No effect."""
    verbosity: str | None = None
    """No effect."""
    prompt_cache_key: str | None = None
    """No effect."""
    prompt_cache_retention: str | None = None
    """No effect."""
    safety_identifier: str | None = None
    """No effect."""


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the chat API."""

    question: ChatQuestion
    """The question to draw an answer for."""
    request: ChatRequest
    """The decoded body."""

    @classmethod
    def read(cls, body: bytes) -> ChatCall:
        """Reads the call from a body. Raises CallError, or msgspec.MsgspecError for a malformed body."""
        request = json_decoder(ChatRequest).decode(body)
        _refuse_top_logprobs(request)
        length = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        choice = request.tool_choice
        tools = OfferedTools(
            schemas=tuple(request.tools or ()),
            choice=choice.function if isinstance(choice, NamedTool) else choice or "auto",
            parallel=request.parallel_tool_calls is not False,
        )
        form = request.response_format or ResponseFormat("text")
        schema = form.json_schema.schema if form.json_schema is not None else None
        constraint = held_answer(form.type, schema, tools, "response_format")
        settings = request.settings(checked_length(length, "max_completion_tokens"), stops_of(request.stop), constraint)
        question = ChatQuestion(
            messages=messages_of(request.messages), tools=tools, settings=settings, choices=request.choices
        )
        return cls(question=question, request=request)

    @property
    def stream(self) -> bool:
        """True if the client requests the answer as events."""
        return bool(self.request.stream)

    def id_of(self, begun: Begun) -> str:
        """Returns the id of the answer in replies to the client."""
        return f"chatcmpl-{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """Returns the complete answer as a `chat.completion` object, encoded as JSON."""
        choices = []
        for index, response in enumerate(answered.responses):
            turn = self.question.assistant_turn(answered.prompt, response)
            message: dict[str, Any] = {"role": "assistant", "content": turn.text}
            if turn.calls:
                message["content"] = turn.text or None
                message["tool_calls"] = _tool_calls(answered, index, turn)
            if turn.thought is not None:
                message["reasoning"] = turn.thought
            logprobs = self.logprobs(answered, response.tokens, response.logprobs)
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": turn.finish})
        head = self.request.head(answered, self.id_of(answered), "chat.completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": answered.usage})

    def events(self, begun: Begun) -> ChatEvents:
        """Returns a writer of `chat.completion.chunk` events."""
        return ChatEvents(self, begun)

    def logprobs(self, begun: Begun, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
        """Returns the log-probabilities of tokens in the API's form; None if not requested."""
        if not self.request.logprobs:
            return None
        decode = begun.tokens_of.tokenizer.decode
        listed = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            text = decode([token])
            listed.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": listed, "refusal": None}


class _ChoiceEvents:
    """The progress of one choice's events."""

    def __init__(self, text: ShownText) -> None:
        """`text` tracks the text that can be sent."""
        self.text = text
        self.begun = False
        """True once the first event was sent."""
        self.untold: tuple[list[int], list[float]] = ([], [])
        """Tokens and log-probabilities not yet sent in an event."""
        self.drawn = 0
        """Number of tokens drawn."""


class ChatEvents:
    """Implements `AnswerEvents` for the chat API. Tool calls are sent when the answer is complete."""

    def __init__(self, call: ChatCall, begun: Begun) -> None:
        """Writes the answer `begun` to `call`."""
        self._call = call
        self._begun = begun
        self._head = call.request.head(begun, call.id_of(begun), "chat.completion.chunk")
        """First fields of every event."""
        self._choices = [
            _ChoiceEvents(call.question.shown(begun.prompt, begun.tokens_of)) for _ in range(call.question.choices)
        ]
        """Progress of each choice."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """Yields the event of the text newly certain, if any."""
        choice = self._choices[index]
        choice.drawn += len(tokens)
        choice.untold[0].extend(tokens)
        choice.untold[1].extend(logprobs)
        parts = choice.text.add(tokens)
        if parts.thought or parts.text:
            yield from self._part_events(index, parts)

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """Yields the remaining text of each choice, its calls and finish reason; then the usage."""
        for index, response in enumerate(answered.responses):
            choice = self._choices[index]
            choice.untold[0].extend(response.tokens[choice.drawn :])
            choice.untold[1].extend(response.logprobs[choice.drawn :])
            turn = self._call.question.assistant_turn(answered.prompt, response)
            yield from self._part_events(index, choice.text.finish(turn.text, turn.thought))
            for position, call in enumerate(_tool_calls(answered, index, turn)):
                yield self._chunk_event(index, {"tool_calls": [{"index": position, **call}]})
            yield self._chunk_event(index, {}, finish=turn.finish)
        if self._call.request.with_usage:
            yield event({**self._head, "choices": [], "usage": answered.usage})
        yield DONE

    def _part_events(self, index: int, parts: ShownParts) -> Iterator[bytes]:
        """Yields the deltas of thought and text, with log-probabilities if requested."""
        choice = self._choices[index]
        if not choice.begun:
            choice.begun = True
            yield self._chunk_event(index, {"role": "assistant", "content": ""})
        listed_logprobs = self._call.logprobs(self._begun, *choice.untold) if choice.untold[0] else None
        choice.untold = ([], [])
        if parts.thought:
            yield self._chunk_event(index, {"reasoning": parts.thought}, None if parts.text else listed_logprobs)
        if parts.text or (listed_logprobs and not parts.thought):
            yield self._chunk_event(index, {"content": parts.text}, listed_logprobs)

    def _chunk_event(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        """Returns the event with a part of one choice."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "choices": [choice]})


def _refuse_top_logprobs(request: ChatRequest) -> None:
    """Raises CallError if alternatives to the drawn tokens are requested."""
    if request.top_logprobs:
        raise unsupported("top_logprobs", "the engine returns the log-probability of the drawn token only")


def _tool_calls(answered: Answered, index: int, turn: AssistantTurn) -> list[dict[str, Any]]:
    """Returns the calls of one choice, each with an id unique in the rollout."""
    return [
        {
            "id": f"call_{answered.id}{index:02}{position:02}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_json},
        }
        for position, call in enumerate(turn.calls)
    ]
