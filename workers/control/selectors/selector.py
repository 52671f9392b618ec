"""`TaskSelector` draws rows of a taskset. It is pure: a draw follows from its `DrawView` alone, never from a clock or
from chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ClosedRewards(msgspec.Struct, frozen=True):
    """Mean rewards of a taskset's closed groups, in the order of closing; the oldest may be absent."""

    count: int
    """Number of closed groups, including those whose rewards are no longer stored."""
    rows: NDArray[np.int64]
    """Rows of the newest closed groups  # [stored]."""
    values: NDArray[np.float64]
    """Mean rewards of the newest closed groups  # [stored]."""

    def between(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns rows and rewards of the groups from number `first` up to `end`, counted from 0."""
        forgotten = self.count - len(self.rows)
        assert first >= forgotten, (first, forgotten)
        return self.rows[first - forgotten : end - forgotten], self.values[first - forgotten : end - forgotten]


class DrawView(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of one draw: position and size, the taskset's rows and columns, the seed, and the rewards until now."""

    first: int
    """Number of rows drawn before: the position of the first row of this draw, from 0."""
    size: int
    """Number of rows to draw: the taskset's part of an explore step. Equal in every draw of a stage."""
    rows: int
    """Number of rows of the taskset."""
    seed: int
    """`data_selector.seed`, 0 or more."""
    columns: NDArray[np.float64]
    """Columns named by `feature_keys`, read-only  # [rows, feature_keys]."""
    rewards: ClosedRewards
    """Mean rewards of closed groups; empty for a selector that does not use rewards."""


class TaskSelector(Protocol):
    """A rule drawing the next rows of one taskset; an instance may cache, but draws must depend on the `DrawView`
    alone.
    """

    follows_rewards: ClassVar[bool]
    """True if draws depend on rewards, and thus on the speed of rollouts; refused in deterministic experiments."""
    once_an_epoch: ClassVar[bool]
    """True if every row is drawn once before any is drawn again."""

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError if the number or the names of `feature_keys` do not suit the selector."""

    def draw(self, view: DrawView) -> Sequence[int]:
        """Returns `view.size` distinct row numbers, in the order in which the rows are to be explored."""
        ...
