"""`SourceMap` locates each field of an experiment file, and excerpts lines with secrets masked."""

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
"""A secret assigned to a telling name such as `api_key` or `token`; group 1 is everything before the secret."""
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^@\s]+@")
"""A password in a URL."""
_EXCERPT_CHARS = 160
"""Maximum characters of an excerpt."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A range of characters in a file, counted from 1; or the `-s` flag that set a field (`line` 0)."""

    origin: str
    """Name of the file, or `-s` for a flag."""
    line: int = 0
    """First line, from 1; 0 for a flag."""
    column: int = 0
    """Column of the first character, from 1."""
    end_line: int = 0
    """Last line."""
    end_column: int = 0
    """Column after the last character."""

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(slots=True)
class SourceMap:
    """Positions of one experiment file's keys and values, by field path, for error messages."""

    origin: str
    """Name of the file, for messages."""
    lines: Sequence[str] = ()
    """Lines of the file."""
    values: dict[FieldPath, SourcePlace] = field(default_factory=dict)
    """Positions of values, by field path."""
    keys: dict[FieldPath, SourcePlace] = field(default_factory=dict)
    """Positions of keys, by field path."""
    moved: dict[FieldPath, FieldPath] = field(default_factory=dict)
    """Current name to the name in the file, for fields written in an older spelling."""
    variables: dict[FieldPath, str] = field(default_factory=dict)
    """Environment variable read for the value of a field."""
    flags: dict[FieldPath, str] = field(default_factory=dict)
    """Text after `=` of the `-s` flag setting a field."""
    covered: list[SourcePlace] = field(default_factory=list)
    """Positions of secrets, masked in excerpts."""

    def written(self, path: FieldPath) -> FieldPath:
        """Returns the path of a field as spelt in the file, for example in an older spelling."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.moved:
                return self.moved[path[:length]] + path[length:]
        return path

    def locate(self, path: FieldPath, *, at_key: bool = False) -> SourcePlace | None:
        """Returns the position of a field's value (or of its key, if `at_key`); of an absent field, the nearest
        section's. None without any.
        """
        path = self.written(path)
        for length in range(len(path), -1, -1):
            prefix = path[:length]
            # A section is shown at the key, because a section's value may be many lines long; a field is shown at the
            # value.
            exact = length == len(path)
            first, second = (self.keys, self.values) if at_key or not exact else (self.values, self.keys)
            position = first.get(prefix) or second.get(prefix)
            if position is not None:
                return position if prefix or exact else SourcePlace(position.origin)
        return None

    def word(self, path: FieldPath) -> str | None:
        """Returns the text of a field's value as written by the user; None for a value of several lines."""
        path = self.written(path)
        position = self.values.get(path)
        if position is None or not position.line:
            return self.flags.get(path)
        if position.end_line != position.line or position.line > len(self.lines):
            return None
        return self.lines[position.line - 1][position.column - 1 : position.end_column - 1]

    def has(self, path: FieldPath) -> bool:
        """True if the field is written in the file or set by a `-s` flag, rather than a default."""
        path = self.written(path)
        return path in self.values or path in self.keys

    def cover(self, path: FieldPath) -> None:
        """Masks the value of a field, a secret, in every excerpt."""
        position = self.values.get(self.written(path))
        if position is not None and position.line:
            self.covered.append(position)

    def excerpt(self, position: SourcePlace) -> str | None:
        """Returns the line of `position` with a mark under the column range."""
        if not 0 < position.line <= len(self.lines) or position.origin != self.origin:
            return None
        # Excerpts are for reading: one line of a generated file would fill the screen.
        if len(self.lines[position.line - 1]) > _EXCERPT_CHARS:
            return None
        line = self._masked_line(position.line)
        width = (
            position.end_column - position.column
            if position.end_line == position.line
            else len(line) - position.column + 1
        )
        width = max(1, min(width, len(line) - position.column + 1))
        number = str(position.line)
        gutter = " " * len(number)
        return f"{gutter} |\n{number} | {line}\n{gutter} | {' ' * (position.column - 1)}{'^' * width}"

    def _masked_line(self, number: int) -> str:
        """Returns a line with all secrets in it masked."""
        line = self.lines[number - 1]
        for position in self.covered:
            if position.line <= number <= position.end_line:
                start = position.column - 1 if number == position.line else 0
                # A secret may be a block of several lines: all columns between the first and the last character are
                # covered.
                end = position.end_column - 1 if number == position.end_line else len(line)
                line = line[:start] + "*" * (end - start) + line[end:]
        # If validation stopped before reaching the field, the name of the key must suffice.
        line = _ASSIGNED.sub(lambda match: match[1] + "*" * len(match[2]), line)
        line = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", line)
        # Control characters would reach the reader's terminal.
        return "".join(char if char.isprintable() else " " for char in line)
