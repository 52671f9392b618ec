"""Calls of tools in drawn text. A `ToolForm` is a family of models' way of writing calls.

The chat template shows a model its own calls in the same form. Calls in another form stay text. Training never depends
on the form: it uses the drawn ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rftd.ops.decoding import json_decoder


class DrawnToolCall(msgspec.Struct, frozen=True):
    """A tool call made by the model: the tool's name, and arguments by name."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments by name."""

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text."""
        return msgspec.json.encode(self.arguments).decode()


Parameters: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schema of each tool's arguments, by the tool's name."""
ReadCalls: TypeAlias = Callable[[str, Parameters], Sequence[DrawnToolCall]]
"""Reads the calls of a text beginning with the first call; returns none if any call is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """A form of written tool calls: marks, a reader, and a forced beginning."""

    read: ReadCalls
    """Reader of the calls."""
    begin: Callable[[str | None], str]
    """Returns the necessary beginning of an answer that calls the named tool, or any tool for None."""
    opens: str = ""
    """Mark before the first call, anywhere in the answer."""
    starts: str = ""
    """First character of an answer consisting of calls alone."""
    closes: str = ""
    """Mark after each call, if the form has one."""
    special: bool = False
    """True: the marks are special tokens, omitted from an answer's text by default."""

    def find(self, text: str) -> int:
        """Returns the offset of the first call; -1 without one."""
        blank = len(text) - len(text.lstrip())
        if self.starts and text.startswith(self.starts, blank):
            return blank
        return text.find(self.opens) if self.opens else -1

    def split(self, text: str, parameters: Parameters) -> tuple[str, tuple[DrawnToolCall, ...]]:
        """Returns the text before the first call, and the calls; all text and no calls if any call is malformed."""
        at = self.find(text)
        calls = tuple(self.read(text[at:], parameters)) if at >= 0 else ()
        return (text[:at].rstrip(), calls) if calls else (text, ())


def json_call(text: str | bytes) -> DrawnToolCall | None:
    """Reads the call in a JSON object with `name` and `arguments` (Llama: `parameters`); None for other texts."""
    try:
        fields = json_decoder(_JsonCall).decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    arguments = fields.parameters if fields.arguments is None else fields.arguments
    return DrawnToolCall(fields.name, arguments or {})


class _JsonCall(msgspec.Struct, frozen=True):
    """A call as a JSON object."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any] | None = None
    """Arguments by name."""
    parameters: dict[str, Any] | None = None
    """Arguments by name, in Llama's form."""


def json_arguments(name: str, text: str) -> DrawnToolCall | None:
    """Returns the call of a tool with a JSON object of arguments; None for other texts."""
    try:
        return DrawnToolCall(name, json_decoder(dict[str, Any]).decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return None


def all_or_none(calls: Sequence[DrawnToolCall | None]) -> Sequence[DrawnToolCall]:
    """Returns the calls, or none if any call is malformed."""
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else ()
