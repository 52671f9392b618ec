"""`DatasetRecord`: one row with typed access to its keys, including paths into a column."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message, parse_messages

_SHOWN_CHARS: Final = 40
"""Most characters of a cell shown in an error."""


def _shown_cell(cell: Any) -> str:
    """Returns a cell as JSON, cut for messages."""
    text = msgspec.json.encode(cell).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


class DatasetRecord:
    """A row with typed access to its keys; every error names the row and its keys."""

    def __init__(self, record: dict[str, Any], spec: TasksetSpec, row: int) -> None:
        """`record` is row number `row` of the taskset."""
        self._record = record
        self._where = f"taskset {spec.name!r} ({spec.path}) row {row}"
        """Taskset, path and row, for messages."""
        self.form: Format = spec.format
        """Format of the taskset: the keys of its columns, and the form of its prompts."""

    def has(self, key: str) -> bool:
        """True if the row has a cell, and not null, under the key."""
        return self.value(key) is not None

    def names(self, key: str) -> bool:
        """True if the row has the key, even with a null cell."""
        return value_at(self._record, key) is not ABSENT

    def value(self, key: str) -> Any:
        """Returns the unconverted cell under the key; None if absent."""
        cell = value_at(self._record, key)
        return None if cell is ABSENT else cell

    def text(self, key: str) -> str:
        """Returns the cell as text; a number or a list is written as JSON."""
        self._require(key)
        cell = self.value(key)
        return cell if isinstance(cell, str) else msgspec.json.encode(cell).decode()

    def optional(self, key: str | None) -> str | None:
        """Returns the text under the key; None if the key is None, or the row has no such column or a null cell."""
        return self.text(key) if key and self.has(key) else None

    def words(self, key: str) -> str:
        """Returns the text under the key. Raises DataError for messages or any other type."""
        self._require(key)
        if isinstance(cell := self.value(key), str):
            return cell
        raise self.error(
            f"has a {type(cell).__name__} under {key!r}, where prompt_type {self.form.prompt_type} has a text", key
        )

    def number(self, key: str) -> float:
        """Returns the number under the key. Raises DataError for a text, NaN or an infinity."""
        self._require(key)
        cell = self.value(key)
        if isinstance(cell, (bool, int, float)) and math.isfinite(cell):
            return float(cell)
        raise self.error(f"has {_shown_cell(cell)} under {key!r}, where a number belongs", key)

    def flag(self, key: str) -> bool:
        """Returns the boolean under the key; 1 and 0 count as true and false. Raises DataError for a text."""
        self._require(key)
        cell = self.value(key)
        # 1.0 and "true" are refused: a column of floats or texts is more likely a score or a name than a label.
        if isinstance(cell, (bool, int)) and cell in (0, 1):
            return bool(cell)
        problem = f"has {_shown_cell(cell)} under {key!r}, which is true for a desirable answer and else false"
        raise self.error(problem, key)

    def messages(self, key: str) -> tuple[Message, ...]:
        """Returns the conversation under the key; a single message counts as a conversation."""
        self._require(key)
        cell = self.value(key)
        try:
            return parse_messages([cell] if isinstance(cell, dict) else cell)
        except ValueError as error:
            raise self.error(f"has messages under {key!r} that {error}", key) from None

    def conversation(self, key: str) -> tuple[Message, ...]:
        """Returns the messages under the key, preceded by the system prompt if they begin without one."""
        messages = self.messages(key)
        system_prompt = self.system_prompt()
        if system_prompt and messages[0].role != "system":
            return (Message("system", system_prompt), *messages)
        return messages

    def tools(self) -> str:
        """Returns the tools available to the assistant, as a JSON list of objects; empty if the row has none."""
        key = self.form.tools_key
        cell = self.value(key)
        if not cell:
            return ""
        try:
            listed = msgspec.json.decode(cell) if isinstance(cell, str) else cell
        except UNREADABLE as error:
            raise self.error(f"has tools under {key!r} that are not JSON: {error}", key) from None
        if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
            raise self.error(f"has tools under {key!r} that are not a list of objects", key)
        return msgspec.json.encode(listed).decode() if listed else ""

    def system_prompt(self) -> str | None:
        """Returns the row's system prompt, or else the experiment's; None without either."""
        return self.optional(self.form.system_prompt_key) or self.form.system_prompt

    def error(self, problem: str, key: str | None = None) -> DataError:
        """Builds a DataError about this row, or about its cell under `key`."""
        nearest = nearest_path(self._record, key) if key and not self.names(key) else None
        return DataError(
            f"row {problem}; its keys are {paths_of(self._record)}",
            where=self._where,
            field=key,
            fix="correct the row, or set the keys of format to the names of the columns"
            + (f" (did you mean {nearest!r}?)" if nearest else ""),
        )

    def _require(self, key: str) -> None:
        """Raises DataError if the row has no cell, or null, under the key."""
        if self.names(key) and self.value(key) is None:
            raise self.error(f"has null under {key!r}, where a value belongs", key)
        if not self.has(key):
            raise self.error(f"has no value under {key!r}", key)


_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,9})\]")
"""One step of a path: a name or an index."""
_PATHS: Final = 40
"""Most paths of a row shown in an error."""
_DEEPEST: Final = 3
"""Depth of the paths shown in an error."""

ABSENT: Final = object()
"""Marker returned by `value_at` for a path without a cell."""


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """Returns the cell at a dotted path `key` of the row, possibly None; `ABSENT` if there is none.

    A column named exactly like the key takes precedence over a path.
    """
    if key in row:
        return row[key]
    node: Any = row
    for step in _key_steps(key):
        if not _has_child(node, step):
            return ABSENT
        node = node[step]
    return ABSENT if node is row else node


def paths_of(row: Mapping[str, Any]) -> list[str]:
    """Returns the keys of a row, sorted, each followed by the paths within it."""
    paths = [path for name in sorted(row) for path in (name, *_paths_below(name, row[name], _DEEPEST))]
    return paths if len(paths) <= _PATHS else [*paths[:_PATHS], "..."]


def nearest_path(row: Mapping[str, Any], key: str) -> str | None:
    """Returns the path of the row most similar to an absent key, for an error's suggestion; None without a
    similar one.
    """
    paths = [path for name in row for path in (name, *_paths_below(name, row[name], _DEEPEST))]
    within = [path for path in paths if path.endswith((f".{key}", f".{key.rpartition('.')[2]}"))]
    return next(iter(within or difflib.get_close_matches(key, paths, 1)), None)


@lru_cache(maxsize=256)
def _key_steps(key: str) -> tuple[str | int, ...]:
    """Returns the names and indices in a key, in order; empty for an invalid path."""
    steps: list[str | int] = []
    end = 0
    while end < len(key):
        step = _STEP.match(key, end)
        if step is None:
            return ()
        steps.append(step[1] if step[1] is not None else int(step[2]))
        end = step.end()
    return tuple(steps)


def _has_child(node: Any, step: str | int) -> bool:
    """True if a step of a key leads to a child of the node."""
    if isinstance(step, str):
        return isinstance(node, dict) and step in node
    return isinstance(node, list) and -len(node) <= step < len(node)


def _paths_below(path: str, node: Any, depth: int) -> Iterator[str]:
    """Yields the paths within a node, down to a depth."""
    if depth and isinstance(node, dict):
        for name in node:
            yield f"{path}.{name}"
            yield from _paths_below(f"{path}.{name}", node[name], depth - 1)
    elif depth and isinstance(node, list) and node and isinstance(node[0], dict):
        yield from _paths_below(f"{path}[0]", node[0], depth - 1)
