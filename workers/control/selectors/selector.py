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
    """Mean rewards of a taskset's closed groups, in the order of closing; the oldest ones may be forgotten."""

    count: int
    """Number of closed groups, including forgotten ones."""
    rows: NDArray[np.int64]
    """Rows of the newest groups  # [kept]."""
    values: NDArray[np.float64]
    """Mean rewards of the newest groups  # [kept]."""

    def between(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns rows and rewards of the groups from number `first` up to `end`, counted from 0."""
        forgotten = self.count - len(self.rows)
        assert first >= forgotten, (first, forgotten)
        return self.rows[first - forgotten : end - forgotten], self.values[first - forgotten : end - forgotten]


class DrawView(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a draw: position and size, the taskset's rows and columns, the seed, and the rewards so far."""

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
    """Empty for a selector independent of rewards."""


class TaskSelector(Protocol):
    """A source of rows. An instance serves one taskset; state kept between draws may only make it faster."""

    follows_rewards: ClassVar[bool]
    """True: draws depend on rewards, so on the duration of rollouts; deterministic experiments may not use the
    selector.
    """
    once_an_epoch: ClassVar[bool]
    """True: every row is drawn once before any is drawn again."""

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError for `feature_keys` unsuitable for the selector, by number or by name."""

    def draw(self, view: DrawView) -> Sequence[int]:
        """Returns `view.size` distinct rows, in the order of their exploration."""
        ...
