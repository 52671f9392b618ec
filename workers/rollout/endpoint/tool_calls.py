"""Calls of tools in what a model drew: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

This is the form of Hermes and Qwen, in which their chat templates show calls too. What a model says in another form
stays text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from rftd.ops.decoding import json_decoder

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_CALL: Final = re.compile(rf"{OPEN}\s*(\{{.*?\}})\s*(?:{CLOSE}|\Z)", re.DOTALL)


class DrawnToolCall(msgspec.Struct, frozen=True):
    """A call that the model made."""

    name: str
    arguments: dict[str, Any] = {}

    @property
    def arguments_json(self) -> str:
        """The arguments as the text that clients decode."""
        return msgspec.json.encode(self.arguments).decode()


def tool_calls_in(text: str) -> tuple[str, tuple[DrawnToolCall, ...]]:
    """The text before the first call, and the calls; all of the text and none if one of them is malformed."""
    if OPEN not in text:
        return text, ()
    calls = []
    for found in _CALL.finditer(text):
        try:
            calls.append(json_decoder(DrawnToolCall).decode(found[1]))
        except (msgspec.MsgspecError, RecursionError):
            return text, ()
    return (text.partition(OPEN)[0].rstrip(), tuple(calls)) if calls else (text, ())


def forced_beginning(name: str | None) -> str:
    """What an answer has to begin with to be a call: of this tool, or of any if None."""
    return f'{OPEN}\n{{"name": "' + (f'{name}", "arguments": ' if name else "")
