"""`Tracker` is the contract of every kind. All of it blocks: the follower calls it on a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.tracking.point import Point, TrackedRun

SURE_S: Final = 300.0
"""The time between two sure moments of a library that says of finished runs alone that they are stored."""
Kept = dict[str, Any]
"""All that a tracker has to remember of what it has kept; what only the cursor's file holds counts."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of every tracker."""

    run: TrackedRun
    folder: Path
    """The folder for its files, which no other tracker writes to."""
    args: dict[str, Any]
    """The arguments of `monitor_args`, with the values of variables."""

    def file(self, role: str, kind: str) -> str:
        """The name of a run's file: `trainer.0198c2f1.jsonl`, and `points.0198c2f1.jsonl` where there is one run."""
        return f"{role or 'points'}.{self.run.short_id}.{kind}"


class Tracker(Protocol):
    """Shows the points of one run."""

    sure_at_once: bool
    """True if `settle` always makes sure; False of a library that stores at moments of its own."""

    def open(self, kept: Kept) -> None:
        """Goes on after what `settle` returned last; empty before the first time.

        Points that were written after that, before a kill, are undone here, or not doubled by `write`.
        Raises RftdError: UnreachableError for a service that may come back.
        """
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Shows points, in order. The same ones come again if the process was killed before it settled."""
        ...

    def settle(self, *, surely: bool) -> Kept | None:
        """Makes sure that everything written survives a kill; returns what `open` needs to go on.

        None if that is not sure, which it may be unless `surely`: after a kill, all points since the last sure moment
        come again, those with figures in the same order and with the same rows.
        """
        ...

    def close(self, ended: str) -> None:
        """Leaves; `ended` says how the experiment ended, and is empty if it may go on."""
        ...
