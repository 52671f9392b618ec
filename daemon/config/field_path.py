"""Paths of fields of an experiment file, made of keys and indices, and their text form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

FieldPath: TypeAlias = tuple[str | int, ...]
"""Path of a field: keys of mappings, and indices of lists."""

# At most six digits: more than the longest list may need; int() raises ValueError for thousands of digits.
_PART = re.compile(r"\[(\d{1,6})\]|\.?([^.\[\]]+)")
"""One key or index in the text of a path."""


def show(path: FieldPath) -> str:
    """Formats a path as text, for example `buffer.explorer_input.eval_tasksets[0].name`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def parse(text: str) -> FieldPath | None:
    """Parses the text of a path, with `[0]` or `.0` for a list index; None for any other text."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or (match.start() == 0 and text[0] == "."):
            return None
        index, name = match.groups()
        if index is not None:
            parts.append(int(index))
        else:
            # isdigit() accepts digits of other scripts, and int() reads them: only `0` to `9` may be an index.
            parts.append(int(name) if name.isascii() and name.isdigit() and len(name) <= 6 else name)
        position = match.end()
    return tuple(parts) or None


def child(node: Any, key: str | int) -> Any:
    """Returns the element of a mapping or a list at `key`; None if absent."""
    if isinstance(node, dict):
        return node.get(key)
    if isinstance(node, list) and isinstance(key, int) and 0 <= key < len(node):
        return node[key]
    return None


def put(node: dict[str, Any] | list[Any], key: str | int, content: Any) -> None:
    """Sets one element of a mapping or a list: keys become text in a mapping, and numbers in a list."""
    if isinstance(node, dict):
        node[str(key)] = content
    else:
        node[int(key)] = content


def matches(pattern: FieldPath, path: FieldPath) -> bool:
    """True if `path` has the shape of `pattern`, where `*` matches any single key or index."""
    return len(pattern) == len(path) and all(
        expected in ("*", key) for expected, key in zip(pattern, path, strict=True)
    )


def leaves(node: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the fields below a node with their contents; a list of scalars is one field."""
    if isinstance(node, dict) and (node or not path):
        for key, below in node.items():
            yield from leaves(below, (*path, key))
    elif isinstance(node, list) and any(isinstance(element, dict) for element in node):
        for number, element in enumerate(node):
            yield from leaves(element, (*path, number))
    else:
        yield path, node
