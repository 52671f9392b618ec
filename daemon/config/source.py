"""`SourceMap` says where each field of an experiment file stands, and shows the line without its secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rftd.daemon.config.field_path import FieldPath
from rftd.ops.redaction import MASK

_ASSIGNED = re.compile(
    r"""((?:api_?key|token|passw(?:or)?d|secret|credentials?)["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,}{][^,}]*)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^@\s]+@")
_EXCERPT_CHARS = 160


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A position in a file, counted from 1, or the `-s` flag that set a field (`line` 0)."""

    origin: str
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(slots=True)
class SourceMap:
    """The place of every key and value of one experiment, by field; secrets in its lines can be covered."""

    origin: str
    lines: Sequence[str] = ()
    values: dict[FieldPath, SourcePlace] = field(default_factory=dict)
    keys: dict[FieldPath, SourcePlace] = field(default_factory=dict)
    moved: dict[FieldPath, FieldPath] = field(default_factory=dict)
    """Current name to the name in the file, for fields in an older spelling."""
    variables: dict[FieldPath, str] = field(default_factory=dict)
    """The environment variable whose value a field took."""
    flags: dict[FieldPath, str] = field(default_factory=dict)
    """The text behind `=` of a `-s` flag that set a field."""
    covered: list[SourcePlace] = field(default_factory=list)

    def written(self, path: FieldPath) -> FieldPath:
        """The name under which the file has this field."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.moved:
                return self.moved[path[:length]] + path[length:]
        return path

    def locate(self, path: FieldPath, *, at_key: bool = False) -> SourcePlace | None:
        """The place of the field, or of the nearest section around it."""
        path = self.written(path)
        for length in range(len(path), -1, -1):
            prefix = path[:length]
            # A section is shown at its key: its value may be many lines long. A field is shown at its
            # value.
            exact = length == len(path)
            first, second = (self.keys, self.values) if at_key or not exact else (self.values, self.keys)
            place = first.get(prefix) or second.get(prefix)
            if place is not None:
                return place if prefix or exact else SourcePlace(place.origin)
        return None

    def word(self, path: FieldPath) -> str | None:
        """The value of a field as the user wrote it, if it stands in one line."""
        path = self.written(path)
        place = self.values.get(path)
        if place is None or not place.line:
            return self.flags.get(path)
        if place.end_line != place.line or place.line > len(self.lines):
            return None
        return self.lines[place.line - 1][place.column - 1 : place.end_column - 1]

    def has(self, path: FieldPath) -> bool:
        """True if the user wrote this field."""
        path = self.written(path)
        return path in self.values or path in self.keys

    def cover(self, path: FieldPath) -> None:
        """Hides the value of a field in every excerpt: it is a secret."""
        place = self.values.get(self.written(path))
        if place is not None and place.line:
            self.covered.append(place)

    def excerpt(self, place: SourcePlace) -> str | None:
        """The line of `place` with a mark under it."""
        if not 0 < place.line <= len(self.lines) or place.origin != self.origin:
            return None
        # An excerpt is for reading: one line of a generated file would fill the screen.
        if len(self.lines[place.line - 1]) > _EXCERPT_CHARS:
            return None
        line = self._masked(place.line)
        width = place.end_column - place.column if place.end_line == place.line else len(line) - place.column + 1
        width = max(1, min(width, len(line) - place.column + 1))
        number = str(place.line)
        gutter = " " * len(number)
        return f"{gutter} |\n{number} | {line}\n{gutter} | {' ' * (place.column - 1)}{'^' * width}"

    def _masked(self, number: int) -> str:
        line = self.lines[number - 1]
        for place in self.covered:
            if place.line <= number <= place.end_line:
                start = place.column - 1 if number == place.line else 0
                # A secret may be a block of several lines: all columns between its first and its last
                # character are covered.
                end = place.end_column - 1 if number == place.end_line else len(line)
                line = line[:start] + "*" * (end - start) + line[end:]
        # Where the schema did not get far enough to know the field, the name of the key has to do.
        line = _ASSIGNED.sub(lambda found: found[1] + "*" * len(found[2]), line)
        line = _IN_URL.sub(rf"\g<1>{MASK}@", line)
        # Control characters would reach the terminal of whoever reads the error.
        return "".join(char if char.isprintable() else " " for char in line)
