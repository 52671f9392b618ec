"""Messages as in the chat API, converted to messages for a chat template."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.datasets.message import Message
from rftd.workers.generation.endpoint.call_error import CallError, unsupported

ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role for the template of each role in requests."""
_TEXTS: Final = ("text", "input_text", "output_text")
"""Types of parts with text."""


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content; only text is supported."""

    type: str
    """Type of the part; only text is accepted."""
    text: str | None = None
    """The text."""


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a tool call, with its arguments as JSON text."""

    name: str
    """Name of the function."""
    arguments: str = ""
    """Arguments as JSON text."""


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in an assistant's message, as sent back by clients."""

    id: str = ""
    """Id of the call."""
    type: str = "function"
    """Always `function`."""
    function: CalledFunction
    """The called function."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a request. Unknown fields are ignored: clients send answers back with fields of their own."""

    role: str
    """Role of the author."""
    content: str | list[ContentPart] | None = None
    """Text, or parts of it."""
    name: str | None = None
    """Name of the author or tool."""
    tool_calls: list[ToolCallPart] | None = None
    """Tool calls of the assistant."""
    tool_call_id: str | None = None
    """Id of the call answered by the message."""


def messages_of(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """Converts a request's messages to a conversation. Raises CallError for unknown roles or content."""
    if not messages:
        raise CallError(400, "messages is empty", param="messages")
    return tuple(_template_message(message, f"messages[{number}]") for number, message in enumerate(messages))


def content_text(content: str | list[ContentPart] | None, path: str) -> str:
    """Returns the text of a content. Raises CallError for parts other than text."""
    if content is None or isinstance(content, str):
        return content or ""
    for piece in content:
        if piece.type not in _TEXTS:
            raise unsupported(path, f"{path} has a part of type {piece.type!r}; the model reads text only")
    return "".join(piece.text or "" for piece in content)


def called(name: str, arguments: str, id: str) -> dict[str, Any]:
    """Returns a tool call for a template, with arguments decoded where they are a JSON object."""
    decoded: Any = arguments
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # a model's malformed JSON stays text
        decoded = json_decoder(dict[str, Any]).decode(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": decoded}}


def _template_message(message: ChatMessage, path: str) -> Message:
    """Converts one message, at `path` in the request. Raises CallError."""
    role = ROLES.get(message.role)
    if role is None:
        role_names = ", ".join(ROLES)
        raise CallError(400, f"{path}.role is {message.role!r}; known: {role_names}", param=f"{path}.role")
    extra: dict[str, Any] = {}
    if message.name is not None:
        extra["name"] = message.name
    if message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        extra["tool_calls"] = [
            called(call.function.name, call.function.arguments, call.id) for call in message.tool_calls
        ]
    content = content_text(message.content, f"{path}.content")
    return Message(role, content, msgspec.json.encode(extra).decode() if extra else "")
