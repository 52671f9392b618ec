"""The name of a field of an experiment file: a path of keys and indices, and its text."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

FieldPath: TypeAlias = tuple[str | int, ...]

# At most six digits: more than any list may have items, and int() raises ValueError for thousands of them.
_PART = re.compile(r"\[(\d{1,6})\]|\.?([^.\[\]]+)")


def show(path: FieldPath) -> str:
    """The text of a path, such as `buffer.explorer_input.eval_tasksets[0].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def parse(text: str) -> FieldPath | None:
    """The path that `text` names, with `[0]` or `.0` for an item of a list; None if it names none."""
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
            # A digit of another script is a digit to isdigit(), and int() reads it: only `0` to `9` may
            # name an item.
            parts.append(int(name) if name.isascii() and name.isdigit() and len(name) <= 6 else name)
        position = match.end()
    return tuple(parts) or None


def child(node: Any, key: str | int) -> Any:
    """The item of a mapping or a list; None if there is none."""
    if isinstance(node, dict):
        return node.get(key)
    if isinstance(node, list) and isinstance(key, int) and 0 <= key < len(node):
        return node[key]
    return None


def put(node: dict[str, Any] | list[Any], key: str | int, value: Any) -> None:
    """Sets one item of a mapping or a list."""
    if isinstance(node, dict):
        node[str(key)] = value
    else:
        node[int(key)] = value


def matches(pattern: FieldPath, path: FieldPath) -> bool:
    """True if `path` has the shape of `pattern`, in which `*` stands for any one part."""
    return len(pattern) == len(path) and all(p in ("*", part) for p, part in zip(pattern, path, strict=True))
