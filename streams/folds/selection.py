"""`Selection`: the rows that selectors drew, and the rewards that they are told, by taskset.

Both are kept for the stage under way alone, and of rewards only the newest: a selector forgets what is older.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.streams.events.task import GroupClosed, TasksDrawn

REWARD: Final = struct.Struct("<qd")
"""One closed group in `Rewards.kept`: its row, and the mean reward of its members."""


class DrawnTasks(msgspec.Struct, frozen=True):
    """Rows that were drawn together."""

    first: int
    """The place of the first within the taskset."""
    rows: tuple[int, ...]

    def row_at(self, place: int) -> int | None:
        """The row that was drawn for the place; None if it is of another draw."""
        return self.rows[place - self.first] if 0 <= place - self.first < len(self.rows) else None


class Rewards(msgspec.Struct):
    """The mean rewards of a taskset's closed groups, in the order in which they closed."""

    count: int = 0
    """Groups that closed with a member."""
    kept: bytes = b""
    """The newest of them, `REWARD` each: once there were so many, `limits.KEPT_REWARDS` at least."""

    @property
    def first(self) -> int:
        """The number of the first that is kept, from 0."""
        return self.count - len(self.kept) // REWARD.size

    def add(self, row: int, value: float) -> None:
        """Counts one group on. What is forgotten follows from the count alone, whoever folds."""
        self.count += 1
        self.kept += REWARD.pack(row, value)
        if len(self.kept) >= 2 * limits.KEPT_REWARDS * REWARD.size:
            self.kept = self.kept[limits.KEPT_REWARDS * REWARD.size :]


class Selection(msgspec.Struct):
    """Draws and rewards of an experiment, by (stage, taskset)."""

    draws: dict[tuple[int, int], DrawnTasks] = {}
    """The newest draw."""
    rewards: dict[tuple[int, int], Rewards] = {}

    def draw(self, event: TasksDrawn) -> None:
        """Takes in a draw; one that comes again, or late, changes nothing."""
        key = (event.stage, event.taskset)
        newest = self.draws.get(key)
        if newest is not None and event.first < newest.first + len(newest.rows):
            return
        self.draws = {other: draw for other, draw in self.draws.items() if other[0] >= event.stage}
        self.draws[key] = DrawnTasks(event.first, event.rows)

    def close(self, event: GroupClosed) -> None:
        """Takes in the rewards of a closed group, if a selector is told them."""
        if event.row < 0 or event.taskset < 0 or not event.members:
            return
        self.rewards = {key: rewards for key, rewards in self.rewards.items() if key[0] >= event.stage}
        of_taskset = self.rewards.setdefault((event.stage, event.taskset), Rewards())
        of_taskset.add(event.row, sum(member.reward for member in event.members) / len(event.members))
