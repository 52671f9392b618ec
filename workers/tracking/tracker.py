"""`Tracker`, the contract of every kind. All methods block: the follower calls methods on a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rftd.workers.tracking.point import Point, TrackedRun

SURE_S: Final = 300.0
"""Seconds between two confirmations of storage, for a library that confirms storage only for finished runs."""
Kept = dict[str, Any]
"""The state that a tracker needs to continue in another process, as last saved in the cursor's file."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of every tracker: the run, a folder, and the kind's own arguments."""

    run: TrackedRun
    """Description of the tracked experiment."""
    folder: Path
    """The folder for its files, which no other tracker writes to."""
    args: dict[str, Any]
    """The arguments of `monitor_args`, with the values of variables."""

    def file(self, role: str, kind: str) -> str:
        """Returns the name of a run's file: `trainer.0198c2f1.jsonl`, or `points.0198c2f1.jsonl` for a single run."""
        return f"{role or 'points'}.{self.run.short_id}.{kind}"


class Tracker(Protocol):
    """Writes the points of a run into a file or to a service, each point once."""

    sure_at_once: bool
    """True if `settle` always confirms storage; False for a library that stores at times of its own choice."""

    def open(self, kept: Kept) -> None:
        """Continues from the state last returned by `settle`; empty at the first start.

        Points written after that `settle`, before a kill, are removed here, or not duplicated by `write`. Raises
        RftdError: UnreachableError for a service temporarily away.
        """
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Writes points, in order. Points not confirmed by `settle` before a kill are passed again."""
        ...

    def settle(self, *, surely: bool) -> Kept | None:
        """Confirms that everything written survives a kill; returns the state for `open`.

        With `surely` False, None may be returned instead, if storage is uncertain: after a kill, all points since the
        last confirmation are passed again, those with figures in equal order and with equal rows.
        """
        ...

    def close(self, ended: str) -> None:
        """Closes the tracker; `ended` is the experiment's end, empty if still running."""
        ...
