"""`ScriptPlaces` tells lines and columns of a script's characters, and the keys that stand between two of them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Final

from rftd.daemon.config.source import SourcePlace

_KEY: Final = re.compile(r"(?<![\w./$~-])\+{0,2}[a-z_]\w*(?:\.\w+)+=[^\s\"')\\]*")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


class ScriptPlaces:
    """The places of one script."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def line(self, at: int) -> int:
        """The number of the line of a character."""
        return bisect.bisect_right(self._line_starts, at)

    def place(self, at: int, end: int) -> SourcePlace:
        """The place of the characters from `at` up to `end`."""
        line = self.line(at)
        column = at - self._line_starts[line - 1] + 1
        return SourcePlace(self._origin, line, column, line, column + max(1, end - at))

    def keys(self, start: int, end: int) -> Iterator[tuple[SourcePlace, str]]:
        """The overrides `section.key=value` in this part of the script, as they are written, with their places."""
        comments = [found.span() for found in _COMMENT.finditer(self._text, start, end)]
        for found in _KEY.finditer(self._text, start, end):
            if not any(first <= found.start() < last for first, last in comments):
                yield self.place(found.start(), found.end()), found.group()
