"""Calls of tools in what a model drew. A `ToolForm` is how a family of models writes them.

The chat template shows a model its own calls in the same form. What it says in another form stays text. What is
trained never depends on any of this: it is the ids that were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rftd.ops.decoding import json_decoder


class DrawnToolCall(msgspec.Struct, frozen=True):
    """A call that the model made."""

    name: str
    arguments: dict[str, Any] = {}

    @property
    def arguments_json(self) -> str:
        """The arguments as the text that clients decode."""
        return msgspec.json.encode(self.arguments).decode()


Parameters: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""
ReadCalls: TypeAlias = Callable[[str, Parameters], Sequence[DrawnToolCall]]
"""The calls in a text that begins with the first of them; none if one of them is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """The form in which calls are written."""

    read: ReadCalls
    begin: Callable[[str | None], str]
    """What an answer has to begin with to be a call: of this tool, or of any if None."""
    opens: str = ""
    """Begins the first call, wherever it stands."""
    starts: str = ""
    """The first character of an answer that is calls and nothing else."""
    closes: str = ""
    """Ends each call, where that is a text of its own."""
    special: bool = False
    """These marks are special tokens, which the text of an answer leaves out unless it is asked for them."""

    def find(self, text: str) -> int:
        """The place where the first call begins; -1 without one."""
        blank = len(text) - len(text.lstrip())
        if self.starts and text.startswith(self.starts, blank):
            return blank
        return text.find(self.opens) if self.opens else -1

    def split(self, text: str, parameters: Parameters) -> tuple[str, tuple[DrawnToolCall, ...]]:
        """The text before the first call, and the calls; all of the text and none if one of them is malformed."""
        at = self.find(text)
        calls = tuple(self.read(text[at:], parameters)) if at >= 0 else ()
        return (text[:at].rstrip(), calls) if calls else (text, ())


def json_call(text: str | bytes) -> DrawnToolCall | None:
    """The call in a JSON object with `name` and `arguments` (or `parameters`, as Llama says); None if it is none."""
    try:
        found = json_decoder(_JsonCall).decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    arguments = found.parameters if found.arguments is None else found.arguments
    return DrawnToolCall(found.name, arguments or {})


class _JsonCall(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


def json_arguments(name: str, text: str) -> DrawnToolCall | None:
    """The call of a tool with arguments that are a JSON object; None if they are none."""
    try:
        return DrawnToolCall(name, json_decoder(dict[str, Any]).decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return None


def all_or_none(calls: Sequence[DrawnToolCall | None]) -> Sequence[DrawnToolCall]:
    """The calls, or none if one of them is malformed."""
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else ()
