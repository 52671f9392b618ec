"""`Tracker`, the contract of every kind. All methods block: the follower calls methods on a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.tracking.point import Point, TrackedRun

SURE_S: Final = 300.0
"""Seconds between two sure moments of a library that confirms storage only for finished runs."""
Kept = dict[str, Any]
"""The state that a tracker needs to continue; only the copy in the cursor's file counts."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of every tracker: the run, a folder, and the kind's own arguments."""

    run: TrackedRun
    folder: Path
    """The folder for its files, which no other tracker writes to."""
    args: dict[str, Any]
    """The arguments of `monitor_args`, with the values of variables."""

    def file(self, role: str, kind: str) -> str:
        """Returns the name of a run's file: `trainer.0198c2f1.jsonl`, or `points.0198c2f1.jsonl` for a single run."""
        return f"{role or 'points'}.{self.run.short_id}.{kind}"


class Tracker(Protocol):
    """Shows the points of a run in a file or at a service, each point once."""

    sure_at_once: bool
    """True if `settle` always confirms storage; False for a library that stores at moments of its own."""

    def open(self, kept: Kept) -> None:
        """Continues from the state last returned by `settle`; empty before the first time.

        Points written afterwards, before a kill, are undone here, or not doubled by `write`. Raises RftdError:
        UnreachableError for a service temporarily away.
        """
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Shows points, in order. Equal points come again if the process was killed before settling."""
        ...

    def settle(self, *, surely: bool) -> Kept | None:
        """Makes everything written survive a kill; returns the state for `open`.

        None if uncertain, as allowed unless `surely`: after a kill, all points since the last sure moment come again,
        points with figures in equal order and with equal rows.
        """
        ...

    def close(self, ended: str) -> None:
        """Closes the tracker; `ended` is the experiment's end, empty if still running."""
        ...
