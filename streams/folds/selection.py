"""`Selection`: rows drawn by selectors, and rewards reported to selectors, by taskset.

Only the current stage's are stored, and only the newest rewards: a selector ignores older ones.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.streams.events.task import GroupClosed, TasksDrawn

REWARD: Final = struct.Struct("<qd")
"""Layout of one closed group in `Rewards.kept`: its row, and the mean reward of its members."""


class DrawnTasks(msgspec.Struct, frozen=True):
    """The rows of one draw of a selector."""

    first: int
    """Number of the first row among all rows drawn from the taskset, from 0."""
    rows: tuple[int, ...]
    """The drawn rows, in order."""

    def row_at(self, draw_number: int) -> int | None:
        """Returns the row drawn as number `draw_number`; None if another draw has it."""
        return self.rows[draw_number - self.first] if 0 <= draw_number - self.first < len(self.rows) else None


class Rewards(msgspec.Struct):
    """The mean rewards of a taskset's closed groups, in the order of closing."""

    count: int = 0
    """Number of groups closed with a member."""
    kept: bytes = b""
    """The newest rewards, packed as `REWARD`: at least `limits.KEPT_REWARDS` once there were as many."""

    @property
    def first(self) -> int:
        """Number of the first reward in `kept`, counted from 0 over all groups."""
        return self.count - len(self.kept) // REWARD.size

    def add(self, row: int, value: float) -> None:
        """Adds a group's mean reward; old rewards are dropped at counts equal in every process."""
        self.count += 1
        self.kept += REWARD.pack(row, value)
        if len(self.kept) >= 2 * limits.KEPT_REWARDS * REWARD.size:
            self.kept = self.kept[limits.KEPT_REWARDS * REWARD.size :]


class Selection(msgspec.Struct):
    """Draws and rewards of an experiment, by (stage, taskset)."""

    draws: dict[tuple[int, int], DrawnTasks] = {}
    """Newest draw."""
    rewards: dict[tuple[int, int], Rewards] = {}
    """Rewards by stage and taskset."""

    def draw(self, event: TasksDrawn) -> None:
        """Folds a draw; a repeated or late one changes nothing."""
        key = (event.stage, event.taskset)
        newest = self.draws.get(key)
        if newest is not None and event.first < newest.first + len(newest.rows):
            return
        self.draws = {
            stage_and_taskset: draw
            for stage_and_taskset, draw in self.draws.items()
            if stage_and_taskset[0] >= event.stage
        }
        self.draws[key] = DrawnTasks(event.first, event.rows)

    def close(self, event: GroupClosed) -> None:
        """Folds the rewards of a closed group, if a selector uses the taskset's rewards."""
        if event.row < 0 or event.taskset < 0 or not event.members:
            return
        self.rewards = {key: rewards for key, rewards in self.rewards.items() if key[0] >= event.stage}
        of_taskset = self.rewards.setdefault((event.stage, event.taskset), Rewards())
        of_taskset.add(event.row, sum(member.reward for member in event.members) / len(event.members))
