"""The trackers of an experiment: their progress, and the reason for a waiting one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rftd.workers.tracking.cursor import Cursor


class TrackerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tracker of an experiment: its progress, or the reason for showing nothing."""

    kind: str
    """Kind of the tracker, such as `tensorboard`."""
    points: int
    """Number of points shown by the tracker."""
    step: int
    """Last training step shown by the tracker."""
    ended: bool
    """True once an ended experiment is shown completely."""
    error: str
    """Reason for showing nothing now; empty without an error."""


def rows_of(cursors: Mapping[str, Cursor]) -> list[TrackerRow]:
    """Returns the trackers by kind, as answered by the API."""
    return [
        TrackerRow(kind=kind, points=cursor.points, step=cursor.step, ended=cursor.ended, error=cursor.error)
        for kind, cursor in cursors.items()
    ]


def tracker_line(row: TrackerRow, step: int) -> str:
    """Returns the tracker in one line: `wandb: 120 points up to step 40, 2 steps behind; WORK: ... does not answer`."""
    behind = max(0, step - row.step)
    late = f", {behind} step{'s' if behind > 1 else ''} behind" if behind else ""
    state = ", all of it" if row.ended else late
    return f"{row.kind}: {row.points} points up to step {row.step}{state}" + (f"; {row.error}" if row.error else "")
