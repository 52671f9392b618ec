"""The trackers of an experiment: how far each has come, and why one waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rftd.workers.tracking.cursor import Cursor


class TrackerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tracker of an experiment."""

    kind: str
    points: int
    """The number of points that it has shown."""
    step: int
    """The last training step that it has shown."""
    ended: bool
    """True once the whole of an experiment that has ended is shown."""
    error: str
    """The reason why it shows nothing now; empty if it does."""


def rows_of(cursors: Mapping[str, Cursor]) -> list[TrackerRow]:
    """The trackers as the API answers them."""
    return [
        TrackerRow(kind=kind, points=cursor.points, step=cursor.step, ended=cursor.ended, error=cursor.error)
        for kind, cursor in cursors.items()
    ]


def tracker_line(row: TrackerRow, step: int) -> str:
    """`wandb: 120 points up to step 40, 2 steps behind; WORK: MLflow at ... does not answer`."""
    behind = max(0, step - row.step)
    late = f", {behind} step{'s' if behind > 1 else ''} behind" if behind else ""
    state = ", all of it" if row.ended else late
    return f"{row.kind}: {row.points} points up to step {row.step}{state}" + (f"; {row.error}" if row.error else "")
