"""`DatasetRecord`: one row with typed access to its keys, also those that lead into a column."""

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
from rftd.streams.spec.row_format import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message, parse_messages

_SHOWN_CHARS: Final = 40
"""The most characters of a value that are shown in a complaint."""


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


class DatasetRecord:
    """A row with typed access to its keys; every complaint names the row and the keys that it has."""

    def __init__(self, record: dict[str, Any], spec: TasksetSpec, row: int) -> None:
        self._record = record
        self._where = f"taskset {spec.name!r} ({spec.path}) row {row}"
        self.form: Format = spec.format

    def has(self, key: str) -> bool:
        """True if the row has a value under the key."""
        return self.value(key) is not None

    def names(self, key: str) -> bool:
        """True if the row has the key, be it with null."""
        return value_at(self._record, key) is not ABSENT

    def value(self, key: str) -> Any:
        """The value under the key, as the row has it; None if there is none."""
        value = value_at(self._record, key)
        return None if value is ABSENT else value

    def text(self, key: str) -> str:
        """The value as text; a number or a list is written as JSON."""
        self._demand(key)
        value = self.value(key)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    def optional(self, key: str | None) -> str | None:
        """The text under the key; None if there is no key, no such column or no value."""
        return self.text(key) if key and self.has(key) else None

    def words(self, key: str) -> str:
        """The text under the key, which may be nothing else: messages where a text belongs are a mistake."""
        self._demand(key)
        if isinstance(value := self.value(key), str):
            return value
        raise self.error(
            f"has a {type(value).__name__} under {key!r}, where prompt_type {self.form.prompt_type} has a text", key
        )

    def number(self, key: str) -> float:
        """The finite number under the key; a text is none."""
        self._demand(key)
        value = self.value(key)
        if isinstance(value, (bool, int, float)) and math.isfinite(value):
            return float(value)
        raise self.error(f"has {_shown(value)} under {key!r}, where a number belongs", key)

    def flag(self, key: str) -> bool:
        """True or false under the key, which 1 and 0 mean as well; a text is neither."""
        self._demand(key)
        value = self.value(key)
        # 1.0 and "true" are refused: a column of floats or texts is more likely a score or a name than a label.
        if isinstance(value, (bool, int)) and value in (0, 1):
            return bool(value)
        what = f"has {_shown(value)} under {key!r}, which is true for a desirable answer and else false"
        raise self.error(what, key)

    def messages(self, key: str) -> tuple[Message, ...]:
        """The conversation under the key; one message alone is one of a single message."""
        self._demand(key)
        value = self.value(key)
        try:
            return parse_messages([value] if isinstance(value, dict) else value)
        except ValueError as error:
            raise self.error(f"has messages under {key!r} that {error}", key) from None

    def conversation(self, key: str) -> tuple[Message, ...]:
        """The messages under the key, after the system prompt if they bring none."""
        messages = self.messages(key)
        system_prompt = self.system_prompt()
        if system_prompt and messages[0].role != "system":
            return (Message("system", system_prompt), *messages)
        return messages

    def tools(self) -> str:
        """The tools that the assistant may call, as a JSON list of objects; empty if the row has none."""
        key = self.form.tools_key
        value = self.value(key)
        if not value:
            return ""
        try:
            listed = msgspec.json.decode(value) if isinstance(value, str) else value
        except UNREADABLE as error:
            raise self.error(f"has tools under {key!r} that are no JSON: {error}", key) from None
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise self.error(f"has tools under {key!r} that are not a list of objects", key)
        return msgspec.json.encode(listed).decode() if listed else ""

    def system_prompt(self) -> str | None:
        """The system prompt: the row's own, else the experiment's."""
        return self.optional(self.form.system_prompt_key) or self.form.system_prompt

    def error(self, what: str, key: str | None = None) -> DataError:
        """A DataError about this row, or about what it has under a key."""
        nearest = nearest_path(self._record, key) if key and not self.names(key) else None
        return DataError(
            f"row {what}; its keys are {paths_of(self._record)}",
            where=self._where,
            field=key,
            fix="correct the row, or set the keys of format to the names of the columns"
            + (f" (did you mean {nearest!r}?)" if nearest else ""),
        )

    def _demand(self, key: str) -> None:
        if self.names(key) and self.value(key) is None:
            raise self.error(f"has null under {key!r}, where a value belongs", key)
        if not self.has(key):
            raise self.error(f"has no value under {key!r}", key)


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
