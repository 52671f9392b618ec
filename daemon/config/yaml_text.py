"""`yaml_text` prints plain data as commented YAML, read back identically by rftd's loader and by other parsers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.grammar import has_interpolation, read_scalar

_UNSAFE: Final = frozenset("#:{}[],&*!|>'\"%@`?-")
"""Characters that may not begin an unquoted text."""
_IN_FLOW: Final = frozenset(",[]{}")
"""Characters that may not be in an unquoted text within brackets."""


def yaml_text(tree: Mapping[str, Any], comments: Mapping[FieldPath, str] | None = None) -> str:
    """Returns the tree as a file; the comment of a field follows the value, or the name of a section."""
    return "".join(f"{line}\n" for line in _mapping(tree, (), comments or {}, 0))


def _mapping(node: Mapping[str, Any], above: FieldPath, comments: Mapping[FieldPath, str], depth: int) -> Iterator[str]:
    """Yields the lines of a mapping."""
    indent = "  " * depth
    for key, value in node.items():
        path = (*above, key)
        comment = f"  # {one_line(comments[path])}" if path in comments else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{scalar(key)}:{comment}"
            yield from _mapping(value, path, comments, depth + 1)
        elif isinstance(value, list) and any(isinstance(element, dict) and element for element in value):
            yield f"{indent}{scalar(key)}:{comment}"
            yield from _items(value, path, comments, depth)
        else:
            yield f"{indent}{scalar(key)}: {scalar(value)}{comment}"


def _items(nodes: list[Any], above: FieldPath, comments: Mapping[FieldPath, str], depth: int) -> Iterator[str]:
    """Yields the lines of a list of mappings."""
    indent = "  " * depth
    for index, node in enumerate(nodes):
        if isinstance(node, dict) and node:
            # Items of a list are indented by their dash alone.
            lines = _mapping(node, (*above, index), comments, depth + 1)
            yield f"{indent}- {next(lines).lstrip()}"
            yield from lines
        else:
            yield f"{indent}- {scalar(node)}"


def one_line(text: str) -> str:
    """Returns the text with unprintable characters replaced by spaces, fit for a comment."""
    return "".join(char if char.isprintable() else " " for char in text)


def scalar(value: Any, *, flow: bool = False) -> str:
    """Formats a value in one line: `1.0e-6`, and quotes around ambiguous words; `flow` within brackets."""
    if isinstance(value, dict):
        pairs = (f"{scalar(key, flow=True)}: {scalar(element, flow=True)}" for key, element in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(scalar(element, flow=True) for element in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{int(exponent)}" if e else repr(value)
    if isinstance(value, str):
        return _text_scalar(value, flow)
    return str(value)


def _text_scalar(value: str, flow: bool) -> str:
    """Formats a text, quoted where necessary."""
    plain = bool(value) and read_scalar(value) == value and value.isprintable() and value == value.strip()
    if flow and _IN_FLOW & set(value):
        plain = False
    # An interpolation is plain text to YAML unless a part of it begins a comment or a pair.
    plain = plain and not _UNSAFE & set(value[:1]) and ": " not in value and " #" not in value and value[-1] != ":"
    if plain and has_interpolation(value):
        return value
    if plain:
        return str(yaml.safe_dump(value, width=1 << 20, allow_unicode=True)).removesuffix("\n").removesuffix("\n...")
    return str(yaml.safe_dump(value, default_style='"', width=1 << 20, allow_unicode=True)).removesuffix("\n")
