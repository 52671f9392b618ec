"""Calls whose arguments are written one by one: the tags of Qwen 3 Coder, and calls as Python writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.rollout.endpoint.tool_calls import DrawnToolCall, Parameters, ToolForm, all_or_none

_FUNCTION: Final = re.compile(
    r"<tool_call>\s*<function=([^>\s]+)\s*>(.*?)(?:</function>\s*(?:</tool_call>|\Z)|\Z)", re.DOTALL
)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)


def _qwen3(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    calls = [
        DrawnToolCall(
            name, {key: _typed(value, _schema(parameters, name, key)) for key, value in _PARAMETER.findall(body)}
        )
        for name, body in _FUNCTION.findall(text)
    ]
    # One that does not have the form is malformed, and not overlooked.
    return calls if len(calls) == text.count("<tool_call>") else ()


def _schema(parameters: Parameters, name: str, key: str) -> Mapping[str, Any]:
    properties = parameters.get(name, {}).get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """An argument as its schema wants it: a text where it says so or nothing, else JSON if the argument is any."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds or not ({"type", "anyOf", "oneOf", "enum"} & schema.keys()):
        return value
    try:
        return json_decoder(object).decode(value)
    except (msgspec.MsgspecError, RecursionError):
        pass
    # Models that were trained on Python write its constants.
    return {"True": True, "False": False, "None": None}.get(value.strip(), value)


def _pythonic(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return all_or_none([_call(each) for each in tree.elts]) if isinstance(tree, ast.List) else ()


def _call(node: ast.expr) -> DrawnToolCall | None:
    """A call by name with arguments by name, each a literal."""
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    arguments: dict[str, Any] = {}
    for given in node.keywords:
        if given.arg is None:
            return None
        try:
            value = ast.literal_eval(given.value)
            msgspec.json.encode(value)
        except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgspec.MsgspecError):
            return None
        arguments[given.arg] = value
    return DrawnToolCall(ast.unparse(node.func), arguments)


QWEN3: Final = ToolForm(
    read=_qwen3,
    begin=lambda name: "<tool_call>\n<function=" + (f"{name}>\n" if name else ""),
    opens="<tool_call>",
    closes="</tool_call>",
)
PYTHONIC: Final = ToolForm(read=_pythonic, begin=lambda name: f"[{name}(" if name else "[", starts="[")
