"""`ShellScript` is everything that was read of a script, `ShellChoices` what somebody says of it beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
