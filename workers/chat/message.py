"""One message of a conversation, and the ways in which a dataset row spells a list of them."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True):
    """What one side said."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str


def parse_messages(value: Any) -> tuple[Message, ...]:
    """The messages in a row's value: a list of {role, content}, or the same as a JSON string.

    Raises ValueError, in words that follow "messages ...", if it is neither or is empty.
    """
    try:
        if isinstance(value, str):
            messages = msgspec.json.decode(value, type=tuple[Message, ...])
        else:
            messages = msgspec.convert(value, type=tuple[Message, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"are not a list of objects with role and content: {error}") from None
    if not messages:
        raise ValueError("are empty")
    return messages
