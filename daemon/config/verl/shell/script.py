"""`ShellScript`: the output of reading a script; `ShellChoices`: the user's choices; `ScriptPlaces`: positions in a
script.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.word import ShellWord, merged_words


@dataclass(frozen=True, slots=True)
class ShellChoices:
    """The user's choices for a script, resolving undecidable branches and values."""

    assumed: Mapping[str, str] = field(default_factory=dict)
    """Variables with fixed values, wherever the script reads them."""
    taken: Collection[int] = ()
    """Lines that are run: the branches around them are taken."""
    skipped: Collection[int] = ()
    """Lines that are not run."""


@dataclass(slots=True)
class ShellScript:
    """Commands and files read from a script, and overrides in branches not taken."""

    commands: list[list[ShellWord]] = field(default_factory=list)
    """Commands as lists of words; a command in a loop is repeated for each iteration."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts written by the script through here-documents, by file path."""
    passed_over: dict[str, SourcePlace] = field(default_factory=dict)
    """Overrides in branches not taken, as written, with positions."""


def one_command(commands: Sequence[Sequence[ShellWord]]) -> list[ShellWord]:
    """Merges alternative commands, the iterations of a loop, into one."""
    if len(commands) == 1:
        return list(commands[0])
    return merged_words(commands, "a loop gives it several values")


_KEY: Final = re.compile(r"(?<![\w./$~-])\+{0,2}[a-z_]\w*(?:\.\w+)+=[^\s\"')\\]*")
"""An override `section.key=value`."""
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
"""A comment, up to the end of the line."""


class ScriptPlaces:
    """Converts offsets in the text of one script to lines and positions."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin
        self._line_starts = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def line(self, at: int) -> int:
        """Returns the line number, from 1, of the character at index `at`."""
        return bisect.bisect_right(self._line_starts, at)

    def place(self, at: int, end: int) -> SourcePlace:
        """Returns the position of the characters from `at` up to `end`."""
        line = self.line(at)
        column = at - self._line_starts[line - 1] + 1
        return SourcePlace(self._origin, line, column, line, column + max(1, end - at))

    def keys(self, start: int, end: int) -> Iterator[tuple[SourcePlace, str]]:
        """Yields the overrides `section.key=value` in a range of the script, as written, with positions."""
        comments = [match.span() for match in _COMMENT.finditer(self._text, start, end)]
        for match in _KEY.finditer(self._text, start, end):
            if not any(first <= match.start() < last for first, last in comments):
                yield self.place(match.start(), match.end()), match.group()
