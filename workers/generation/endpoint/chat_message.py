"""Messages as the chat API has them, and as a chat template takes them."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.datasets.message import Message
from rftd.workers.generation.endpoint.call_error import CallError, unsupported

ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXTS: Final = ("text", "input_text", "output_text")


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a tool call, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an assistant's message."""

    id: str = ""
    type: str = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a request. Clients send back what they were given with fields of their own, so others are let be."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallPart] | None = None
    tool_call_id: str | None = None


def messages_of(given: list[ChatMessage]) -> tuple[Message, ...]:
    """The conversation. Raises CallError."""
    if not given:
        raise CallError(400, "messages is empty", param="messages")
    return tuple(_message(each, f"messages[{number}]") for number, each in enumerate(given))


def content_text(content: str | list[ContentPart] | None, place: str) -> str:
    """The text of a content. Raises CallError for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _TEXTS:
            raise unsupported(place, f"{place} has a part of type {part.type!r}; the model reads text alone")
    return "".join(part.text or "" for part in content)


def called(name: str, arguments: str, id: str) -> dict[str, Any]:
    """A tool call as templates take it: arguments that are a JSON object as one."""
    read: Any = arguments
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # what a model wrote amiss stays as it is
        read = json_decoder(dict[str, Any]).decode(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": read}}


def _message(given: ChatMessage, place: str) -> Message:
    role = ROLES.get(given.role)
    if role is None:
        known = ", ".join(ROLES)
        raise CallError(400, f"{place}.role is {given.role!r}; known: {known}", param=f"{place}.role")
    extra: dict[str, Any] = {}
    if given.name is not None:
        extra["name"] = given.name
    if given.tool_call_id is not None:
        extra["tool_call_id"] = given.tool_call_id
    if given.tool_calls:
        extra["tool_calls"] = [
            called(each.function.name, each.function.arguments, each.id) for each in given.tool_calls
        ]
    content = content_text(given.content, f"{place}.content")
    return Message(role, content, msgspec.json.encode(extra).decode() if extra else "")
