"""`POST /v1/messages`, Anthropic's API, in the part that agents use: text, tools, streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.datasets.message import Message
from rftd.workers.generation.endpoint.api_call import Answered, Begun, named_event
from rftd.workers.generation.endpoint.call_error import CallError, unsupported
from rftd.workers.generation.endpoint.conversation import AssistantTurn, ChatQuestion
from rftd.workers.generation.endpoint.draw_request import checked_length, stops_of
from rftd.workers.generation.endpoint.offered_tools import FunctionSchema, OfferedTools, ToolSchema
from rftd.workers.generation.endpoint.question import DrawSettings
from rftd.workers.generation.endpoint.shown_text import ShownParts

_CHOICES: Final[dict[str, Literal["none", "auto", "required"]]] = {
    "none": "none",
    "auto": "auto",
    "any": "required",
    "tool": "required",
}
"""What a `tool_choice` of each type is in the words of the chat API."""


class ContentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a message's content."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: str | list[ContentBlock] | None = None


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of one side."""

    role: str
    content: str | list[ContentBlock]


class AnthropicTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that may be called."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None


class AnthropicToolChoice(msgspec.Struct, frozen=True):
    """Which tools may or must be called."""

    type: str
    name: str = ""
    disable_parallel_tool_use: bool = False


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. Fields of the last paragraph are taken and have no effect."""

    messages: list[AnthropicMessage]
    max_tokens: int
    model: str = ""
    system: str | list[ContentBlock] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None

    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    thinking: dict[str, Any] | None = None


class MessagesCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for Anthropic's API."""

    question: ChatQuestion
    given: MessagesRequest

    @classmethod
    def read(cls, body: bytes) -> MessagesCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(MessagesRequest).decode(body)
        settings = DrawSettings(
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            max_tokens=checked_length(given.max_tokens, "max_tokens"),
            stop=stops_of(given.stop_sequences),
        )
        question = ChatQuestion(messages=_messages_of(given), tools=_tools_of(given), settings=settings)
        return cls(question=question, given=given)

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        return bool(self.given.stream)

    def id_of(self, begun: Begun) -> str:
        """The id of the answer, as the client sees it."""
        return f"msg_{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """A `message`."""
        return msgspec.json.encode(self._message(answered))

    def events(self, begun: Begun) -> MessageEvents:
        """The blocks of a message, as they are drawn."""
        return MessageEvents(self, begun)

    def _message(self, answered: Answered) -> dict[str, Any]:
        response = answered.responses[0]
        said = self.question.said(answered.prompt, response)
        thought = {"type": "thinking", "thinking": said.thought or "", "signature": ""}
        content: list[dict[str, Any]] = [thought] if said.thought is not None else []
        content += [{"type": "text", "text": said.text}] if said.text else []
        content += calls_of(answered, said)
        message = self.begun(answered)
        return {**message, "content": content, **self.end(answered, said), "usage": _usage(answered.usage)}

    def begun(self, begun: Begun) -> dict[str, Any]:
        """A message of which nothing is told yet."""
        return {
            "id": self.id_of(begun),
            "type": "message",
            "role": "assistant",
            "model": self.given.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(begun.prompt.ids), "output_tokens": 0},
        }

    def end(self, answered: Answered, said: AssistantTurn) -> dict[str, Any]:
        """Why a message ends."""
        stops = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
        reason = stops[said.finish]
        shown = answered.prompt.text + answered.responses[0].text
        stopped_by = next((stop for stop in self.question.stops if reason == "end_turn" and stop in shown), None)
        return {"stop_reason": "stop_sequence" if stopped_by else reason, "stop_sequence": stopped_by}


class MessageEvents:
    """Implements `AnswerEvents` for Anthropic's API. A tool's call is told when the answer is complete."""

    def __init__(self, call: MessagesCall, begun: Begun) -> None:
        self._call = call
        self._begun = begun
        self._text = call.question.shown(begun.prompt, begun.tokens_of)
        self._started = False
        self._index = -1
        """The number of the newest block."""
        self._open = ""
        """The type of the block that is told; empty without one."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """The deltas of thought and text."""
        yield from self._parts(self._text.more(tokens))

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """The events of what is missing of thought and text, of the calls, and of the message's end."""
        said = self._call.question.said(answered.prompt, answered.responses[0])
        yield from self._start()
        yield from self._parts(self._text.rest(said.text, said.thought))
        yield from self._stop()
        for block in calls_of(answered, said):
            yield from self._begin({**block, "input": {}})
            partial = msgspec.json.encode(block["input"]).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": partial})
            yield from self._stop()
        usage = {"output_tokens": answered.usage["completion_tokens"]}
        yield named_event({"type": "message_delta", "delta": self._call.end(answered, said), "usage": usage})
        yield named_event({"type": "message_stop"})

    def _start(self) -> Iterator[bytes]:
        if not self._started:
            self._started = True
            yield named_event({"type": "message_start", "message": self._call.begun(self._begun)})

    def _parts(self, parts: ShownParts) -> Iterator[bytes]:
        if parts.thought:
            yield from self._within({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": parts.thought})
        if parts.text:
            yield from self._within({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": parts.text})

    def _within(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Begins the block unless it is the one that is told."""
        if self._open != block["type"]:
            yield from self._start()
            yield from self._stop()
            yield from self._begin(block)

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        self._index += 1
        self._open = block["type"]
        yield named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield named_event({"type": "content_block_stop", "index": self._index})


def calls_of(answered: Answered, said: AssistantTurn) -> list[dict[str, Any]]:
    """The blocks of calls."""
    return [
        {"type": "tool_use", "id": f"toolu_{answered.id}{place:02}", "name": call.name, "input": call.arguments}
        for place, call in enumerate(said.calls)
    ]


def _usage(usage: dict[str, int]) -> dict[str, int]:
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}


def _messages_of(given: MessagesRequest) -> tuple[Message, ...]:
    """The conversation in the form of the chat API: results of tools are messages of their own."""
    messages = []
    if given.system:
        messages.append(Message("system", _text_of(given.system, "system")))
    for number, message in enumerate(given.messages):
        place = f"messages[{number}]"
        if message.role not in ("user", "assistant"):
            raise CallError(400, f"{place}.role is {message.role!r}", param=f"{place}.role")
        blocks = message.content
        if isinstance(blocks, str):
            messages.append(Message(message.role, blocks))
            continue
        for block in blocks:
            if block.type == "tool_result":
                extra = msgspec.json.encode({"tool_call_id": block.tool_use_id}).decode()
                messages.append(Message("tool", _text_of(block.content or "", f"{place}.content"), extra))
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in blocks
            if block.type == "tool_use"
        ]
        rest = [block for block in blocks if block.type not in ("tool_result", "tool_use", "thinking")]
        if rest or calls or not blocks:
            extra = msgspec.json.encode({"tool_calls": calls}).decode() if calls else ""
            messages.append(Message(message.role, _text_of(rest, f"{place}.content"), extra))
    if not messages:
        raise CallError(400, "messages is empty", param="messages")
    return tuple(messages)


def _text_of(content: str | list[ContentBlock], place: str) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text":
            raise unsupported(place, f"{place} has a block of type {block.type!r}; the model reads text alone")
    return "".join(block.text for block in content)


def _tools_of(given: MessagesRequest) -> OfferedTools:
    listed = []
    for number, tool in enumerate(given.tools or ()):
        if tool.type not in (None, "custom"):
            raise unsupported(f"tools[{number}].type", f"a tool of type {tool.type!r} is not supported")
        listed.append(ToolSchema("function", FunctionSchema(tool.name, tool.description, tool.input_schema)))
    choice = given.tool_choice or AnthropicToolChoice("auto")
    if choice.type not in _CHOICES:
        known = ", ".join(_CHOICES)
        raise CallError(400, f"tool_choice.type is {choice.type!r}; known: {known}", param="tool_choice.type")
    return OfferedTools(
        schemas=tuple(listed),
        choice=FunctionSchema(choice.name) if choice.type == "tool" else _CHOICES[choice.type],
        parallel=not choice.disable_parallel_tool_use,
    )
