"""Keys of `format` that lead into a column: `reward_model.ground_truth`, `messages[0].content`, `answers[-1]`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,9})\]")
_PATHS: Final = 40
"""The most paths of a row that are shown."""
_DEEPEST: Final = 3

ABSENT: Final = object()
"""What a key leads to that a row does not have."""


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """The value that a key leads to, which may be null; `ABSENT` if there is none. A column of that very name wins."""
    if key in row:
        return row[key]
    value: Any = row
    for step in _steps(key):
        if not _leads(value, step):
            return ABSENT
        value = value[step]
    return ABSENT if value is row else value


def paths_of(row: Mapping[str, Any]) -> list[str]:
    """The keys of a row, sorted, each followed by those within it."""
    paths = [path for name in sorted(row) for path in (name, *_below(name, row[name], _DEEPEST))]
    return paths if len(paths) <= _PATHS else [*paths[:_PATHS], "..."]


def nearest_path(row: Mapping[str, Any], key: str) -> str | None:
    """The path of a row that was most likely meant by a key which leads nowhere."""
    paths = [path for name in row for path in (name, *_below(name, row[name], _DEEPEST))]
    within = [path for path in paths if path.endswith((f".{key}", f".{key.rpartition('.')[2]}"))]
    return next(iter(within or difflib.get_close_matches(key, paths, 1)), None)


@lru_cache(maxsize=256)
def _steps(key: str) -> tuple[str | int, ...]:
    """The names and places that a key names in turn; none of what is no path."""
    steps: list[str | int] = []
    end = 0
    while end < len(key):
        step = _STEP.match(key, end)
        if step is None:
            return ()
        steps.append(step[1] if step[1] is not None else int(step[2]))
        end = step.end()
    return tuple(steps)


def _leads(value: Any, step: str | int) -> bool:
    if isinstance(step, str):
        return isinstance(value, dict) and step in value
    return isinstance(value, list) and -len(value) <= step < len(value)


def _below(path: str, value: Any, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict):
        for name in value:
            yield f"{path}.{name}"
            yield from _below(f"{path}.{name}", value[name], depth - 1)
    elif depth and isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _below(f"{path}[0]", value[0], depth - 1)
