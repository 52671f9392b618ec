"""`TaskRows`: the row of each new group, by its position, or by a draw of the taskset's selector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from rftd.ops.errors import ConfigError
from rftd.streams.events.task import TasksDrawn
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.selection import Rewards
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import draw_size, located, tasksets_of, turn_of
from rftd.workers.control.hold import ReadsColumns
from rftd.workers.control.selectors.registry import draws, make_selector
from rftd.workers.control.selectors.selector import ClosedRewards, DrawView, TaskSelector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ColumnSource: TypeAlias = "Callable[[TasksetSpec], NDArray[np.float64] | None]"
"""Columns needed by a taskset's selector  # [rows, feature_keys]; None while they are being read."""

_REWARD: Final = [("row", "<i8"), ("value", "<f8")]
"""The fields of `REWARD`, as a numpy dtype."""


def no_columns(spec: TasksetSpec) -> NDArray[np.float64] | None:
    """Returns None for every selector needing columns: a column source for readers without a daemon."""
    import numpy as np

    return None if spec.feature_keys else np.empty((spec.rows, 0))


class TaskRows:
    """Rows of an experiment's new groups, by dataset position or by draws of selectors."""

    def __init__(self, state: RunState, columns: ColumnSource = no_columns) -> None:
        self._state = state
        self._columns = columns
        self._selectors: dict[tuple[int, int], TaskSelector] = {}
        """Selectors by (stage, taskset)."""

    def row_of(self, stage: StageSpec, sequence: int) -> tuple[int, int] | TasksDrawn | ReadsColumns:
        """Returns (row, epoch) of the group at a position of the current stage; or the draw to append first; or the
        hold.

        The epoch of a drawn row is the number of the draw, unless the selector draws each row once an epoch. Raises
        ConfigError for a stage without tasks, and for a selector with an invalid draw.
        """
        turn = turn_of(stage, sequence)
        tasksets = tasksets_of(stage)
        spec = tasksets[turn.dataset]
        if not draws(spec.selector):
            return located(stage, turn)
        key = (self._state.spine.stage, turn.dataset)
        selector = self._selectors.get(key) or self._selectors.setdefault(key, make_selector(spec))
        draw = self._state.groups.selection.draws.get(key)
        row = draw.row_at(turn.place) if draw is not None else None
        if draw is None or row is None:
            return self._draw(key, stage, spec, selector, turn.place)
        epoch = turn.place // spec.rows if selector.once_an_epoch else draw.first // draw_size(stage, spec)
        return sum(taskset.rows for taskset in tasksets[: turn.dataset]) + row, epoch

    def _draw(
        self, key: tuple[int, int], stage: StageSpec, spec: TasksetSpec, selector: TaskSelector, first: int
    ) -> TasksDrawn | ReadsColumns:
        """Returns the event of the next draw, or the hold while the selector's columns are being read."""
        import numpy as np

        columns = self._columns(spec)
        if columns is None:
            return ReadsColumns(spec.name, ", ".join(spec.feature_keys))
        rewards = Rewards()
        if selector.follows_rewards:
            rewards = self._state.groups.selection.rewards.get(key, rewards)
        closed = np.frombuffer(rewards.kept, np.dtype(_REWARD))
        view = DrawView(
            first=first,
            size=draw_size(stage, spec),
            rows=spec.rows,
            seed=spec.seed % 2**63,  # generators refuse negative ones
            columns=columns,
            rewards=ClosedRewards(rewards.count, closed["row"], closed["value"]),
        )
        rows = tuple(map(int, selector.draw(view)))
        _check(rows, view, spec)
        number, taskset = key
        return TasksDrawn(stage=number, taskset=taskset, first=first, rows=rows, seen=rewards.count)


def _check(rows: Sequence[int], view: DrawView, spec: TasksetSpec) -> None:
    """Raises ConfigError for an invalid draw: only a third party's selector can make one."""
    wrong = [row for row in rows if not 0 <= row < view.rows]
    if wrong:
        fault = f"row {wrong[0]}, and taskset {spec.name!r} has rows 0 to {view.rows - 1}"
    elif len(set(rows)) < len(rows):
        fault = f"row {next(row for row in rows if rows.count(row) > 1)} twice in one draw"
    elif len(rows) != view.size:
        fault = f"{len(rows)} rows instead of {view.size}"
    else:
        return
    raise ConfigError(
        f"data selector {spec.selector!r} drew {fault}",
        field="data_selector.selector_type",
        fix="correct the selector: it draws `size` different rows",
    )
