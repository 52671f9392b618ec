"""Plain tables and their console: colours only on a terminal with colour output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from rftd.daemon.cli.output.terminal import cells, fitted, plain
from rftd.daemon.cli.settings import Settings

STATE_STYLES: Final = {
    "running": "green",
    "completed": "bold green",
    "failed": "bold red",
    "rejected": "bold red",
    "cancelled": "yellow",
    "paused": "yellow",
    "lost": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}
"""Style of each state's name."""
GAP: Final = 2
"""Number of blanks between two columns."""
LEAST: Final = 20
"""Minimum width in columns for readable folded text."""
LABEL: Final = 14
"""Width of a page's labels."""
_WIDTH_WITHOUT_TERMINAL: Final = 160
"""Width of tables in columns if standard output is no terminal."""
_ENDLESS: Final = 1 << 20
"""Width of text in columns if standard output is no terminal."""


def console_of(settings: Settings, *, stderr: bool = False) -> Console:
    """Returns the console of standard output. Without a terminal lines are wide, so that a pipe receives whole rows."""
    console = Console(stderr=stderr, no_color=not settings.color, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(
            stderr=stderr, color_system=None, highlight=False, width=_WIDTH_WITHOUT_TERMINAL, legacy_windows=False
        )
    return console


def state(text: str) -> Text:
    """Returns a state's name as text in the colour of that state, or uncoloured."""
    return Text(text, style=STATE_STYLES.get(text, ""))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    width: int | None = None,
    first_to_go: Sequence[str] = (),
) -> Table:
    """Builds a table without rules; columns in `right` are numbers, those in `whole` ids: neither is folded.

    If the table is wider than `width`, existing columns of `first_to_go` are dropped, one after the other.
    """
    # Text, not markup: a name may contain brackets.
    lines = [[cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row] for row in rows]
    # Numbers are not text: a folded one would be read as two.
    unfolded = {*right, *whole}
    needed: dict[int, int] = {}
    for number, header in enumerate(headers):
        widest = max(map(cells, (header, *_cell_lines(lines, number))))
        needed[number] = widest if header in unfolded else min(widest, max(LEAST, len(header)))
    for header in first_to_go:
        if width is not None and sum(needed.values()) + GAP * (len(needed) - 1) > width:
            needed = {number: width_needed for number, width_needed in needed.items() if headers[number] != header}
    built = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for number in needed:
        header = headers[number]
        side: Literal["left", "right"] = "right" if header in right else "left"
        built.add_column(header, justify=side, overflow="fold", no_wrap=header in unfolded)
    for row in lines:
        built.add_row(*(row[number] for number in needed))
    return built


class Page:
    """Labels on the left, each with its text folded at the text's own left edge."""

    def __init__(self, lines: Iterable[tuple[str, Text | str]]) -> None:
        """`lines` are labels with their texts; an empty label continues the one above."""
        self._lines = [(label, text if isinstance(text, Text) else Text(plain(text))) for label, text in lines]
        """Labels with their texts."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Not a table: a table pads each line to the width of its widest.
        width = max(LEAST, options.max_width - LABEL) if console.is_terminal else _ENDLESS
        for label, text in self._lines:
            shown = label
            for line in _wrapped(text, console, width):
                line.rstrip()
                yield Text.assemble((f"{shown:<{LABEL}}", "dim"), line, no_wrap=True, overflow="ignore")
                shown = ""


def _wrapped(text: Text, console: Console, width: int) -> Iterable[Text]:
    """Returns the text in lines; a path in text of a single style is broken after a slash."""
    if text.spans:
        return text.wrap(console, width, overflow="fold")
    return [Text(line, style=text.style) for line in fitted(text.plain, width, indent=0).split("\n")]


def labelled(label: str, text: str) -> str:
    """Returns a label and a text, with the text's further lines aligned below its first."""
    first, *further_lines = plain(text).split("\n")
    return "\n".join([f"{label:<{LABEL}}{first}", *(" " * LABEL + line for line in further_lines)])


def show(console: Console, shown: RenderableType) -> None:
    """Prints a page, cropped to the terminal; without a terminal, in whole lines."""
    console.print(shown, crop=console.is_terminal)


def _cell_lines(rows: Sequence[Sequence[Text]], number: int) -> list[str]:
    """Returns the lines of every cell in a column."""
    return [line for row in rows for line in row[number].plain.split("\n")]
