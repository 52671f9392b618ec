"""Holds of the dispatcher while rows are still to be drawn."""

from __future__ import annotations

from rftd.ops.words import Level, Words
from rftd.workers.control.hold import Hold


class ReadsColumns(Hold, frozen=True):
    """The daemon is still reading the columns that a selector looks at."""

    words = Words(
        "columns",
        "the columns {keys} of taskset {taskset}, by which its rows are drawn",
        "daemon",
        "the daemon has read them",
    )
    taskset: str
    keys: str


class DrawsRows(Hold, frozen=True):
    """The next rows of a taskset are about to be drawn."""

    words = Words("draws", "draws the next rows", level=Level.WORKS)
