"""Bugs of selectors: rows that nobody drew, and rewards that count otherwise than they were recorded."""

from __future__ import annotations

from typing import Any

from rftd.streams.folds.selection import DrawnTasks, Selection
from simulator.bugs.bug import Bug, instead


def _the_next_one(row_at: Any) -> Any:
    def other(self: DrawnTasks, place: int) -> int | None:
        row: int | None = row_at(self, place)
        return row if row is None else self.rows[(place - self.first + 1) % len(self.rows)]

    return other


def _twice(close: Any) -> Any:
    def closing(self: Selection, event: Any) -> None:
        close(self, event)
        close(self, event)

    return closing


BUGS = (
    Bug(
        "another row is leased than was drawn",
        "verify: no-task-skipped",
        instead(DrawnTasks, "row_at", _the_next_one),
        within_seeds=200,
    ),
    Bug(
        "a selector is told the rewards of a group twice",
        "drawn_from_rewards",
        instead(Selection, "close", _twice),
        within_seeds=200,
    ),
)
