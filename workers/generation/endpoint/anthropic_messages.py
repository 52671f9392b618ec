"""`POST /v1/messages`: the part of Anthropic's API in use by agents: text, tools, streams."""

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
"""The chat API's `tool_choice`, by the type of Anthropic's `tool_choice`."""


class ContentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a message's content: text, a tool's call, or a tool's result."""

    type: str
    """`text`, `tool_use` or `tool_result`."""
    text: str = ""
    """Text of a text block."""
    id: str = ""
    """Id of a tool's call."""
    name: str = ""
    """Name of the called tool."""
    input: dict[str, Any] = {}
    """Arguments of the call."""
    tool_use_id: str = ""
    """Id of the call answered by a result."""
    content: str | list[ContentBlock] | None = None
    """Content of a result."""


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the user or the assistant."""

    role: str
    """`user` or `assistant`."""
    content: str | list[ContentBlock]
    """Text, or blocks."""


class AnthropicTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool available to the model, with the JSON schema of its input."""

    name: str
    """Name of the tool."""
    input_schema: dict[str, Any]
    """JSON schema of the arguments."""
    description: str | None = None
    """Description for the model."""
    type: str | None = None
    """`custom`; other types are refused."""


class AnthropicToolChoice(msgspec.Struct, frozen=True):
    """The choice among the tools: optional, required or forbidden."""

    type: str
    """`auto`, `any`, `tool` or `none`."""
    name: str = ""
    """Name of the tool to call, for `tool`."""
    disable_parallel_tool_use: bool = False
    """True: an answer has at most one call."""


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. Fields of the last paragraph are accepted without effect."""

    messages: list[AnthropicMessage]
    """The conversation."""
    max_tokens: int
    """Maximum tokens of the answer."""
    model: str = ""
    """Any name: there is one model."""
    system: str | list[ContentBlock] | None = None
    """System prompt."""
    stream: bool | None = None
    """True: the answer is sent as events."""
    stop_sequences: list[str] | None = None
    """Texts that end the answer; the text that matched is hidden from the client."""
    temperature: float | None = None
    """Sampling temperature; None: the experiment's."""
    top_p: float | None = None
    """Nucleus size; None: the experiment's."""
    top_k: int | None = None
    """Number of likeliest tokens; None: the experiment's."""
    tools: list[AnthropicTool] | None = None
    """The callable tools."""
    tool_choice: AnthropicToolChoice | None = None
    """Choice among the tools: optional, required, forbidden, or one tool by name; None: optional."""

    metadata: dict[str, Any] | None = None
    """No effect."""
    service_tier: str | None = None
    """No effect."""
    thinking: dict[str, Any] | None = None
    """No effect."""


class MessagesCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for Anthropic's API."""

    question: ChatQuestion
    """The question to draw an answer for."""
    request: MessagesRequest
    """The decoded body."""

    @classmethod
    def read(cls, body: bytes) -> MessagesCall:
        """Reads the call from a body. Raises CallError, or msgspec.MsgspecError for a malformed body."""
        request = json_decoder(MessagesRequest).decode(body)
        settings = DrawSettings(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=checked_length(request.max_tokens, "max_tokens"),
            stop=stops_of(request.stop_sequences),
        )
        question = ChatQuestion(messages=_messages_of(request), tools=_tools_of(request), settings=settings)
        return cls(question=question, request=request)

    @property
    def stream(self) -> bool:
        """True if the client requests the answer as events."""
        return bool(self.request.stream)

    def id_of(self, begun: Begun) -> str:
        """Returns the id of the answer in replies to the client."""
        return f"msg_{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """Returns the complete answer as a `message` object, encoded as JSON."""
        return msgspec.json.encode(self._message_object(answered))

    def events(self, begun: Begun) -> MessageEvents:
        """Returns a writer of the message's blocks as they are drawn."""
        return MessageEvents(self, begun)

    def _message_object(self, answered: Answered) -> dict[str, Any]:
        """Returns the complete answer as a message object."""
        response = answered.responses[0]
        turn = self.question.assistant_turn(answered.prompt, response)
        thought = {"type": "thinking", "thinking": turn.thought or "", "signature": ""}
        content: list[dict[str, Any]] = [thought] if turn.thought is not None else []
        content += [{"type": "text", "text": turn.text}] if turn.text else []
        content += calls_of(answered, turn)
        message = self.begun(answered)
        return {**message, "content": content, **self.end(answered, turn), "usage": _usage_of(answered.usage)}

    def begun(self, begun: Begun) -> dict[str, Any]:
        """Returns a message without content, for the start of a stream."""
        return {
            "id": self.id_of(begun),
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(begun.prompt.ids), "output_tokens": 0},
        }

    def end(self, answered: Answered, turn: AssistantTurn) -> dict[str, Any]:
        """Returns the reason for a message's end, as `stop_reason` and `stop_sequence`."""
        stops = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}
        reason = stops[turn.finish]
        shown = answered.prompt.text + answered.responses[0].text
        stopped_by = next((stop for stop in self.question.stops if reason == "end_turn" and stop in shown), None)
        return {"stop_reason": "stop_sequence" if stopped_by else reason, "stop_sequence": stopped_by}


class MessageEvents:
    """Implements `AnswerEvents` for Anthropic's API. Tool calls are sent when the answer is complete."""

    def __init__(self, call: MessagesCall, begun: Begun) -> None:
        """Writes the answer `begun` to `call`."""
        self._call = call
        self._begun = begun
        self._text = call.question.shown(begun.prompt, begun.tokens_of)
        """Tracker of the text that can be sent."""
        self._started = False
        """True once the first event was sent."""
        self._index = -1
        """Number of the newest block."""
        self._open = ""
        """Type of the open block; empty without one."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """Yields the deltas of thought and text for newly drawn tokens."""
        yield from self._part_events(self._text.add(tokens))

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """Yields the events for the remaining thought and text, the calls, and the message's end."""
        turn = self._call.question.assistant_turn(answered.prompt, answered.responses[0])
        yield from self._start_once()
        yield from self._part_events(self._text.finish(turn.text, turn.thought))
        yield from self._stop_block()
        for block in calls_of(answered, turn):
            yield from self._begin_block({**block, "input": {}})
            partial = msgspec.json.encode(block["input"]).decode()
            yield self._delta_event({"type": "input_json_delta", "partial_json": partial})
            yield from self._stop_block()
        usage = {"output_tokens": answered.usage["completion_tokens"]}
        yield named_event({"type": "message_delta", "delta": self._call.end(answered, turn), "usage": usage})
        yield named_event({"type": "message_stop"})

    def _start_once(self) -> Iterator[bytes]:
        """Yields the first event, once."""
        if not self._started:
            self._started = True
            yield named_event({"type": "message_start", "message": self._call.begun(self._begun)})

    def _part_events(self, parts: ShownParts) -> Iterator[bytes]:
        """Yields the deltas of thought and text."""
        if parts.thought:
            yield from self._begin_unless_open({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta_event({"type": "thinking_delta", "thinking": parts.thought})
        if parts.text:
            yield from self._begin_unless_open({"type": "text", "text": ""})
            yield self._delta_event({"type": "text_delta", "text": parts.text})

    def _begin_unless_open(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Begins the block unless it is open already."""
        if self._open != block["type"]:
            yield from self._start_once()
            yield from self._stop_block()
            yield from self._begin_block(block)

    def _begin_block(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Yields the event beginning a block."""
        self._index += 1
        self._open = block["type"]
        yield named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta_event(self, delta: dict[str, Any]) -> bytes:
        """Returns the event with a part of the open block."""
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop_block(self) -> Iterator[bytes]:
        """Yields the event ending the open block."""
        if self._open:
            self._open = ""
            yield named_event({"type": "content_block_stop", "index": self._index})


def calls_of(answered: Answered, turn: AssistantTurn) -> list[dict[str, Any]]:
    """Returns the `tool_use` blocks of an answer's calls, with ids."""
    return [
        {"type": "tool_use", "id": f"toolu_{answered.id}{position:02}", "name": call.name, "input": call.arguments}
        for position, call in enumerate(turn.calls)
    ]


def _usage_of(usage: dict[str, int]) -> dict[str, int]:
    """Returns the token counts under Anthropic's names."""
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}


def _messages_of(request: MessagesRequest) -> tuple[Message, ...]:
    """Returns the conversation in the form of the chat API, with the results of tools as separate messages."""
    messages = []
    if request.system:
        messages.append(Message("system", _text_of(request.system, "system")))
    for number, message in enumerate(request.messages):
        path = f"messages[{number}]"
        if message.role not in ("user", "assistant"):
            raise CallError(400, f"{path}.role is {message.role!r}", param=f"{path}.role")
        blocks = message.content
        if isinstance(blocks, str):
            messages.append(Message(message.role, blocks))
            continue
        for block in blocks:
            if block.type == "tool_result":
                extra = msgspec.json.encode({"tool_call_id": block.tool_use_id}).decode()
                messages.append(Message("tool", _text_of(block.content or "", f"{path}.content"), extra))
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in blocks
            if block.type == "tool_use"
        ]
        text_blocks = [block for block in blocks if block.type not in ("tool_result", "tool_use", "thinking")]
        if text_blocks or calls or not blocks:
            extra = msgspec.json.encode({"tool_calls": calls}).decode() if calls else ""
            messages.append(Message(message.role, _text_of(text_blocks, f"{path}.content"), extra))
    if not messages:
        raise CallError(400, "messages is empty", param="messages")
    return tuple(messages)


def _text_of(content: str | list[ContentBlock], path: str) -> str:
    """Returns the text of a content. Raises CallError for blocks other than text."""
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text":
            raise unsupported(path, f"{path} has a block of type {block.type!r}; the model reads text only")
    return "".join(block.text for block in content)


def _tools_of(request: MessagesRequest) -> OfferedTools:
    """Returns the tools of a request. Raises CallError for unsupported types or choices."""
    listed = []
    for number, tool in enumerate(request.tools or ()):
        if tool.type not in (None, "custom"):
            raise unsupported(f"tools[{number}].type", f"a tool of type {tool.type!r} is not supported")
        listed.append(ToolSchema("function", FunctionSchema(tool.name, tool.description, tool.input_schema)))
    choice = request.tool_choice or AnthropicToolChoice("auto")
    if choice.type not in _CHOICES:
        choice_names = ", ".join(_CHOICES)
        raise CallError(400, f"tool_choice.type is {choice.type!r}; known: {choice_names}", param="tool_choice.type")
    return OfferedTools(
        schemas=tuple(listed),
        choice=FunctionSchema(choice.name) if choice.type == "tool" else _CHOICES[choice.type],
        parallel=not choice.disable_parallel_tool_use,
    )
