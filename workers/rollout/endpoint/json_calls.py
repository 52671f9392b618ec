"""Calls with arguments in JSON: Hermes and Qwen 2.5, Llama 3, Mistral, DeepSeek V3."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from rftd.workers.rollout.endpoint.tool_calls import (
    DrawnToolCall,
    Parameters,
    ToolForm,
    all_or_none,
    json_arguments,
    json_call,
)

_HERMES: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)
_PYTHON_TAG: Final = "<|python_tag|>"
_MISTRAL: Final = "[TOOL_CALLS]"
_MISTRAL_CALL: Final = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(\{.*\})\s*", re.DOTALL)
_CALLS: Final = "<｜tool▁calls▁begin｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_CALL_END: Final = "<｜tool▁call▁end｜>"
_V3: Final = re.compile(
    rf"{re.escape(_CALL)}function{re.escape(_SEPARATOR)}([^\n]+)\n```json\n(.*?)\n?```\s*(?:{re.escape(_CALL_END)}|\Z)",
    re.DOTALL,
)
_V31: Final = re.compile(
    rf"{re.escape(_CALL)}(.*?){re.escape(_SEPARATOR)}(.*?)(?:{re.escape(_CALL_END)}|\Z)", re.DOTALL
)


def _hermes(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    return all_or_none([json_call(found[1]) for found in _HERMES.finditer(text)])


def _objects(text: str) -> Iterator[str]:
    """The JSON objects of a text, separated by semicolons; what is no such list ends with what is none."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield ""
            return
        yield text[at:end]
        at = end + len(text[end:]) - len(text[end:].lstrip())
        if at < len(text):
            if text[at] != ";":
                yield ""
                return
            at += 1
            at += len(text[at:]) - len(text[at:].lstrip())


def _llama3(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    return all_or_none([json_call(each) for each in _objects(text.removeprefix(_PYTHON_TAG).strip())])


def _mistral(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """A list of objects behind one mark, as the first versions write it, or a mark before each name."""
    first, *others = text.split(_MISTRAL)[1:]
    if not others and first.lstrip().startswith("["):
        try:
            listed, _ = json.JSONDecoder().raw_decode(first.lstrip())
        except (ValueError, RecursionError):
            return ()
        return all_or_none([json_call(json.dumps(each)) for each in listed])
    calls = []
    for each in (first, *others):
        found = _MISTRAL_CALL.fullmatch(each)
        calls.append(json_arguments(found[1], found[2]) if found else None)
    return all_or_none(calls)


def _deepseek(form: re.Pattern[str]) -> ToolForm:
    fenced = form is _V3

    def read(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
        calls = [json_arguments(found[1].strip(), found[2]) for found in form.finditer(text)]
        # One that does not have the form is malformed, and not overlooked.
        return all_or_none(calls) if len(calls) == text.count(_CALL) else ()

    def begin(name: str | None) -> str:
        opened = f"{_CALLS}{_CALL}function{_SEPARATOR}" if fenced else f"{_CALLS}{_CALL}"
        if name is None:
            return opened
        return f"{opened}{name}\n```json\n" if fenced else f"{opened}{name}{_SEPARATOR}"

    return ToolForm(read=read, begin=begin, opens=_CALLS, closes=_CALL_END, special=True)


HERMES: Final = ToolForm(
    read=_hermes,
    begin=lambda name: '<tool_call>\n{"name": "' + (f'{name}", "arguments": ' if name else ""),
    opens="<tool_call>",
    closes="</tool_call>",
)
LLAMA3: Final = ToolForm(
    read=_llama3,
    begin=lambda name: '{"name": "' + (f'{name}", "parameters": ' if name else ""),
    opens=_PYTHON_TAG,
    starts="{",
    special=True,
)
MISTRAL: Final = ToolForm(
    read=_mistral,
    begin=lambda name: f'{_MISTRAL} [{{"name": "' + (f'{name}", "arguments": ' if name else ""),
    opens=_MISTRAL,
    special=True,
)
DEEPSEEK_V3: Final = _deepseek(_V3)
DEEPSEEK_V31: Final = _deepseek(_V31)
