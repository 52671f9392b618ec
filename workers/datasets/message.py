"""`Message`: one message of a conversation, and the ways in which a dataset row spells a list of them."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.ops.decoding import UNREADABLE, converted, json_decoder


class Message(msgspec.Struct, frozen=True):
    """A message of one side of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    extra: str = ""
    """The other keys that a template may ask for (`tool_calls`, `name`, ...), as a JSON object; empty without any."""

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        return {"role": self.role, "content": self.content, **(msgspec.json.decode(self.extra) if self.extra else {})}


def parse_messages(value: Any) -> tuple[Message, ...]:
    """The messages in a row's value: a list of {role, content}, or the same as a JSON string.

    Other keys of a message are kept; one with `tool_calls` may have no content. Raises ValueError, in words that follow
    "messages ...", if it is neither or is empty.
    """
    try:
        if isinstance(value, str):
            listed = json_decoder(list[dict[str, Any]]).decode(value)
        else:
            listed = converted(value, list[dict[str, Any]])
        messages = tuple(_message(each) for each in listed)
    except UNREADABLE as error:
        raise ValueError(f"are not a list of objects with role and content: {error}") from None
    if not messages:
        raise ValueError("are empty")
    return messages


def _text_of(parts: list[dict[str, Any]]) -> str:
    """The text of a content that is a list of parts, as multimodal sets have it. Raises ValueError for other parts."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type")
        text = part.get("text")
        if kind != "text" or not isinstance(text, str):
            raise ValueError(f"hold a part of type {kind!r} that is no text, and models are asked with text alone")
        texts.append(text)
    return "".join(texts)


def _message(given: dict[str, Any]) -> Message:
    # As JSON text: a message stays hashable, and renderings of equal conversations are cached.
    extra = {key: value for key, value in given.items() if key not in ("role", "content") and value is not None}
    known = {key: given[key] for key in ("role", "content") if key in given}
    parts = known.get("content")
    if isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts):
        known["content"] = _text_of(parts)
    if extra.get("tool_calls") and known.get("content") is None:
        known["content"] = ""  # a call need not say anything
    message = converted(known, Message)
    return msgspec.structs.replace(message, extra=msgspec.json.encode(extra).decode()) if extra else message
