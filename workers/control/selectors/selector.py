"""`TaskSelector` draws rows of a taskset. It is pure: what it draws follows from what it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ClosedRewards(msgspec.Struct, frozen=True):
    """The mean rewards of a taskset's closed groups, in the order in which they closed; the oldest may be forgotten."""

    count: int
    """Groups that closed, with those that are forgotten."""
    rows: NDArray[np.int64]
    """The rows of the newest groups  # [kept]."""
    values: NDArray[np.float64]
    """Their mean rewards  # [kept]."""

    def between(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and rewards of the groups from number `first` up to `end`, counted from 0."""
        forgotten = self.count - len(self.rows)
        assert first >= forgotten, (first, forgotten)
        return self.rows[first - forgotten : end - forgotten], self.values[first - forgotten : end - forgotten]


class DrawView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a draw may depend on."""

    first: int
    """Rows that were drawn before: the place of the first row of this draw, from 0."""
    size: int
    """The number of rows to draw: the taskset's share of an explore step. The same in every draw of a stage."""
    rows: int
    """The number of rows of the taskset."""
    seed: int
    """`data_selector.seed`, 0 or more."""
    columns: NDArray[np.float64]
    """The columns that `feature_keys` names, read-only  # [rows, feature_keys]."""
    rewards: ClosedRewards
    """Empty for a selector that does not follow rewards."""


class TaskSelector(Protocol):
    """Draws rows. An instance serves one taskset; what it keeps from draw to draw may only make it faster."""

    follows_rewards: ClassVar[bool]
    """True: its draws depend on rewards, so on how long rollouts took; no deterministic experiment may use it."""
    once_an_epoch: ClassVar[bool]
    """True: it draws every row once before it draws one again."""

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError for `feature_keys` that it has no use for."""

    def draw(self, view: DrawView) -> Sequence[int]:
        """`view.size` different rows, in the order in which they are to be explored."""
        ...
