"""`AnswerForm`: how a model writes thoughts and calls of tools, by vLLM's names of the forms."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.streams.spec.spec import ModelSpec
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.endpoint.tool_calls import (
    DrawnToolCall,
    Parameters,
    ToolForm,
    all_or_none,
    json_arguments,
    json_call,
)

_FUNCTION: Final = re.compile(
    r"<tool_call>\s*<function=([^>\s]+)\s*>(.*?)(?:</function>\s*(?:</tool_call>|\Z)|\Z)", re.DOTALL
)
"""A call in Qwen3-Coder's form."""
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)
"""An argument in Qwen3-Coder's form."""


def _read_qwen3(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """Reads calls in Qwen3-Coder's form; see `ReadCalls`."""
    calls = [
        DrawnToolCall(
            name,
            {
                key: _parse_argument(argument, _argument_schema(parameters, name, key))
                for key, argument in _PARAMETER.findall(body)
            },
        )
        for name, body in _FUNCTION.findall(text)
    ]
    # A call in another form is malformed, and never ignored.
    return calls if len(calls) == text.count("<tool_call>") else ()


def _argument_schema(parameters: Parameters, name: str, key: str) -> Mapping[str, Any]:
    """Returns the JSON schema of one argument; empty if unknown."""
    properties = parameters.get(name, {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _parse_argument(text: str, schema: Mapping[str, Any]) -> Any:
    """Parses an argument by its schema: text for a string or a schema without a type, else JSON where the argument is
    JSON.
    """
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds or not ({"type", "anyOf", "oneOf", "enum"} & schema.keys()):
        return text
    try:
        return json_decoder(object).decode(text)
    except (msgspec.MsgspecError, RecursionError):
        pass
    # Models trained on Python code write Python's constants.
    return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _read_pythonic(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """Reads a Python list of calls; see `ReadCalls`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return all_or_none([_read_pythonic_call(element) for element in tree.elts]) if isinstance(tree, ast.List) else ()


def _read_pythonic_call(node: ast.expr) -> DrawnToolCall | None:
    """Reads a call by name with named literal arguments; None for any other expression."""
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        try:
            argument = ast.literal_eval(keyword.value)
            msgspec.json.encode(argument)
        except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgspec.MsgspecError):
            return None
        arguments[keyword.arg] = argument
    return DrawnToolCall(ast.unparse(node.func), arguments)


QWEN3: Final = ToolForm(
    read=_read_qwen3,
    begin=lambda name: "<tool_call>\n<function=" + (f"{name}>\n" if name else ""),
    opens="<tool_call>",
    closes="</tool_call>",
)
"""Form of Qwen3-Coder: tags around functions and parameters."""
PYTHONIC: Final = ToolForm(read=_read_pythonic, begin=lambda name: f"[{name}(" if name else "[", starts="[")
"""Form of a Python list of calls."""


_HERMES: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)
"""A call in the form of Hermes."""
_PYTHON_TAG: Final = "<|python_tag|>"
"""Llama 3's mark before calls."""
_MISTRAL: Final = "[TOOL_CALLS]"
"""Mistral's mark before calls."""
_MISTRAL_CALL: Final = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(\{.*\})\s*", re.DOTALL)
"""A call in the newer form of Mistral."""
_CALLS: Final = "<｜tool▁calls▁begin｜>"
"""DeepSeek's mark before all calls."""
_CALL: Final = "<｜tool▁call▁begin｜>"
"""DeepSeek's mark before a call."""
_SEPARATOR: Final = "<｜tool▁sep｜>"
"""DeepSeek's mark behind type or name."""
_CALL_END: Final = "<｜tool▁call▁end｜>"
"""DeepSeek's mark behind a call."""
_V3: Final = re.compile(
    rf"{re.escape(_CALL)}function{re.escape(_SEPARATOR)}([^\n]+)\n```json\n(.*?)\n?```\s*(?:{re.escape(_CALL_END)}|\Z)",
    re.DOTALL,
)
"""A call in the form of DeepSeek V3."""
_V31: Final = re.compile(
    rf"{re.escape(_CALL)}(.*?){re.escape(_SEPARATOR)}(.*?)(?:{re.escape(_CALL_END)}|\Z)", re.DOTALL
)
"""A call in the form of DeepSeek V3.1."""


def _read_hermes(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """Reads calls in the form of Hermes; see `ReadCalls`."""
    return all_or_none([json_call(match[1]) for match in _HERMES.finditer(text)])


def _json_objects(text: str) -> Iterator[str]:
    """Yields the JSON objects of a text, separated by semicolons; a text of another form ends with an empty string."""
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


def _read_llama3(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """Reads calls in the form of Llama 3; see `ReadCalls`."""
    return all_or_none(
        [json_call(text_of_object) for text_of_object in _json_objects(text.removeprefix(_PYTHON_TAG).strip())]
    )


def _read_mistral(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
    """Reads a list of objects behind one mark, as in the first versions, or calls with a mark before each name."""
    first, *following = text.split(_MISTRAL)[1:]
    if not following and first.lstrip().startswith("["):
        try:
            listed, _ = json.JSONDecoder().raw_decode(first.lstrip())
        except (ValueError, RecursionError):
            return ()
        return all_or_none([json_call(json.dumps(listed_call)) for listed_call in listed])
    calls = []
    for call_text in (first, *following):
        match = _MISTRAL_CALL.fullmatch(call_text)
        calls.append(json_arguments(match[1], match[2]) if match else None)
    return all_or_none(calls)


def _deepseek_form(form: re.Pattern[str]) -> ToolForm:
    """Returns the form of calls matched by `form`: V3, with arguments in a code block, or V3.1."""
    fenced = form is _V3

    def read(text: str, parameters: Parameters) -> Sequence[DrawnToolCall]:
        calls = [json_arguments(match[1].strip(), match[2]) for match in form.finditer(text)]
        # A call in another form is malformed, and never ignored.
        return all_or_none(calls) if len(calls) == text.count(_CALL) else ()

    def begin(name: str | None) -> str:
        opened = f"{_CALLS}{_CALL}function{_SEPARATOR}" if fenced else f"{_CALLS}{_CALL}"
        if name is None:
            return opened
        return f"{opened}{name}\n```json\n" if fenced else f"{opened}{name}{_SEPARATOR}"

    return ToolForm(read=read, begin=begin, opens=_CALLS, closes=_CALL_END, special=True)


HERMES: Final = ToolForm(
    read=_read_hermes,
    begin=lambda name: '<tool_call>\n{"name": "' + (f'{name}", "arguments": ' if name else ""),
    opens="<tool_call>",
    closes="</tool_call>",
)
"""Form of Hermes and Qwen: JSON objects between tags."""
LLAMA3: Final = ToolForm(
    read=_read_llama3,
    begin=lambda name: '{"name": "' + (f'{name}", "parameters": ' if name else ""),
    opens=_PYTHON_TAG,
    starts="{",
    special=True,
)
"""Form of Llama 3: JSON objects alone."""
MISTRAL: Final = ToolForm(
    read=_read_mistral,
    begin=lambda name: f'{_MISTRAL} [{{"name": "' + (f'{name}", "arguments": ' if name else ""),
    opens=_MISTRAL,
    special=True,
)
"""Form of Mistral."""
DEEPSEEK_V3: Final = _deepseek_form(_V3)
"""Form of DeepSeek V3."""
DEEPSEEK_V31: Final = _deepseek_form(_V31)
"""Form of DeepSeek V3.1."""


TOOL_FORMS: Final[Mapping[str, ToolForm]] = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3,
    "qwen3_xml": QWEN3,
    "llama3_json": LLAMA3,
    "llama4_json": LLAMA3,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "pythonic": PYTHONIC,
}
"""Forms of tool calls, by `tool_call_parser`."""
DEFAULT_TOOLS: Final = "hermes"
"""Name of the form of tool calls for models without a configured form."""


class ThoughtForm(NamedTuple):
    """The marks around the thought before an answer."""

    opens: str
    """Mark before the thought."""
    closes: str
    """Mark behind the thought."""
    always: bool = False
    """True: each answer begins with a thought, with or without an opening mark."""
    special: bool = False
    """True: the marks are special tokens."""

    def split(self, text: str, *, opened: bool) -> tuple[str | None, str]:
        """Returns the thought (None without one) and the following answer. `opened`: the prompt already began the
        thought.
        """
        blank = len(text) - len(text.lstrip())
        marked = text.startswith(self.opens, blank)
        if not marked and not opened:
            return None, text
        thought, _, answer = text[blank + len(self.opens) if marked else 0 :].partition(self.closes)
        return thought, answer


THOUGHT_FORMS: Final[Mapping[str, ThoughtForm]] = {
    "deepseek_r1": ThoughtForm("<think>", "</think>", always=True),
    "step3": ThoughtForm("<think>", "</think>", always=True),
    "minimax_m2": ThoughtForm("<think>", "</think>", always=True),
    "qwen3": ThoughtForm("<think>", "</think>"),
    "glm45": ThoughtForm("<think>", "</think>"),
    "mistral": ThoughtForm("[THINK]", "[/THINK]", special=True),
    "seed_oss": ThoughtForm("<seed:think>", "</seed:think>"),
}
"""Forms of thoughts, by `reasoning_parser`."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The marks for splitting an answer's text into thought, text and calls."""

    tools: ToolForm = HERMES
    """Form of tool calls."""
    thoughts: ThoughtForm | None = None
    """Form of thoughts; None: the answer has none."""
    auto: bool = True
    """True: calls are recognised where the client lets the model decide about calling tools."""

    @classmethod
    def named(cls, tools: str, thoughts: str, *, auto: bool) -> AnswerForm:
        """Returns the form with these parser names; empty names mean the default for tools, and no thoughts.

        `auto` is True if calls are recognised although the client leaves calling to the model.
        """
        return cls(TOOL_FORMS[tools or DEFAULT_TOOLS], THOUGHT_FORMS[thoughts] if thoughts else None, auto)

    @classmethod
    def of(cls, model: ModelSpec) -> AnswerForm:
        """Returns the form of a model, as named by the experiment."""
        return cls.named(model.tool_call_parser, model.reasoning_parser, auto=model.auto_tool_choice)

    def decoder(self, tokenizer: Tokenizer) -> Callable[[Sequence[int]], str] | None:
        """Returns the decoder of the text to split; None where no mark is a special token."""
        if not (self.tools.special or (self.thoughts is not None and self.thoughts.special)):
            return None
        ends = frozenset(tokenizer.eos_ids)
        return lambda tokens: tokenizer.decode([token for token in tokens if token not in ends], special=True)
