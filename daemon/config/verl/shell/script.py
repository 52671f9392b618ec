"""`ShellScript`: everything read of a script; `ShellChoices`: what somebody says beside; `ScriptPlaces`: its lines."""

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
    """What somebody says of a script that it does not say itself."""

    assumed: Mapping[str, str] = field(default_factory=dict)
    """Variables, with the values that they have wherever the script reads them."""
    taken: Collection[int] = ()
    """Lines that are run: the branches that they are in are taken."""
    skipped: Collection[int] = ()
    """Lines that are not run."""


@dataclass(slots=True)
class ShellScript:
    """Everything that was read."""

    commands: list[list[ShellWord]] = field(default_factory=list)
    """Each as its words; one of a loop is there once for each turn."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts that the script writes by here-documents, by the paths of the files."""
    passed_over: dict[str, SourcePlace] = field(default_factory=dict)
    """Overrides of branches that the script decides against, as they are written, with their places."""


def one_command(commands: Sequence[Sequence[ShellWord]]) -> list[ShellWord]:
    """One command for several of which one is run: the turns of a loop."""
    if len(commands) == 1:
        return list(commands[0])
    return merged_words(commands, "a loop gives it several values")


_KEY: Final = re.compile(r"(?<![\w./$~-])\+{0,2}[a-z_]\w*(?:\.\w+)+=[^\s\"')\\]*")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


class ScriptPlaces:
    """The places of one script."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin
        self._line_starts = [0, *(newline.end() for newline in re.finditer("\n", text))]

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
