"""`Message`: one message of a conversation, and the spellings of a list of messages in a dataset row."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.ops.decoding import UNREADABLE, converted, json_decoder


class Message(msgspec.Struct, frozen=True):
    """A message of one side of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    """Text of the message."""
    extra: str = ""
    """Other keys for templates (`tool_calls`, `name`, ...), as a JSON object; empty without any."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the message as a dictionary for chat templates."""
        return {"role": self.role, "content": self.content, **(msgspec.json.decode(self.extra) if self.extra else {})}


def parse_messages(cell: Any) -> tuple[Message, ...]:
    """Returns the messages in a row's cell: a list of {role, content}, or its JSON text.

    Other keys of a message are kept; one with `tool_calls` may have no content. Raises ValueError, worded to follow
    "messages ...", for any other content and for an empty list.
    """
    try:
        if isinstance(cell, str):
            listed = json_decoder(list[dict[str, Any]]).decode(cell)
        else:
            listed = converted(cell, list[dict[str, Any]])
        messages = tuple(_message(fields) for fields in listed)
    except UNREADABLE as error:
        raise ValueError(f"are not a list of objects with role and content: {error}") from None
    if not messages:
        raise ValueError("are empty")
    return messages


def _text_of(parts: list[dict[str, Any]]) -> str:
    """Returns the text of a content given as a list of parts, as in multimodal sets. Raises ValueError otherwise."""
    texts: list[str] = []
    for content_part in parts:
        kind = content_part.get("type")
        text = content_part.get("text")
        if kind != "text" or not isinstance(text, str):
            raise ValueError(f"hold a part of type {kind!r}, and models take only text")
        texts.append(text)
    return "".join(texts)


def _message(fields: dict[str, Any]) -> Message:
    # As JSON text: a message stays hashable, and renderings of equal conversations are cached.
    """Returns a message of a row's fields, the unknown ones as JSON text. Raises ValidationError."""
    extra = {key: field for key, field in fields.items() if key not in ("role", "content") and field is not None}
    standard = {key: fields[key] for key in ("role", "content") if key in fields}
    parts = standard.get("content")
    if isinstance(parts, list) and parts and all(isinstance(content_part, dict) for content_part in parts):
        standard["content"] = _text_of(parts)
    if extra.get("tool_calls") and standard.get("content") is None:
        standard["content"] = ""  # a call needs no text
    message = converted(standard, Message)
    return msgspec.structs.replace(message, extra=msgspec.json.encode(extra).decode()) if extra else message
