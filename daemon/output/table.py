"""Plain tables and their console: colours only on a terminal that wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rftd.daemon.settings import Settings

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
_WIDTH_WITHOUT_TERMINAL: Final = 160


def console_of(settings: Settings, *, stderr: bool = False) -> Console:
    """The console of standard output. Without a terminal lines are wide, so that a pipe sees whole rows."""
    console = Console(stderr=stderr, no_color=not settings.color, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(
            stderr=stderr, color_system=None, highlight=False, width=_WIDTH_WITHOUT_TERMINAL, legacy_windows=False
        )
    return console


def state(text: str) -> Text:
    """A state in its colour."""
    return Text(text, style=STATE_STYLES.get(text, ""))


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: frozenset[str] = frozenset()
) -> Table:
    """Columns without rules; those named in `right` are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        # Text, not markup: a name may hold brackets.
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made
