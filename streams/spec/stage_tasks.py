"""The tasks of a stage: the rows of its tasksets, counted on from one to the next.

A task is therefore one number in any taskset, and the position among all of them is one number, a fold of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.row_order import DatasetTurn, locate, turn_at
from rftd.streams.spec.spec import StageSpec, TasksetSpec


class TaskPlace(NamedTuple):
    """The taskset of a stage's task, as an index of `tasksets_of`, and its row there."""

    taskset: int
    row: int


def tasksets_of(stage: StageSpec) -> tuple[TasksetSpec, ...]:
    """Returns the tasksets explored by a stage, in the order of counting their rows; none for a stage of rows."""
    return () if stage.taskset is None else (stage.taskset, *stage.more_tasksets)


def is_queue(stage: StageSpec) -> bool:
    """True if the stage's tasks are added while the experiment runs."""
    return stage.taskset is not None and stage.taskset.queue


def task_place(stage: StageSpec, row: int) -> TaskPlace:
    """Returns the taskset of the stage's task `row`, and its row there; beyond the last row, the last taskset."""
    first_row = 0
    last_number = len(stage.more_tasksets)
    for number, taskset in enumerate(tasksets_of(stage)):
        if number == last_number or row < first_row + taskset.rows:
            return TaskPlace(number, row - first_row)
        first_row += taskset.rows
    return TaskPlace(0, row)


def turn_of(stage: StageSpec, sequence: int) -> DatasetTurn:
    """Returns the taskset with the turn at this sequence of the stage. Raises ConfigError for a stage without tasks."""
    sizes = tuple(taskset.rows for taskset in tasksets_of(stage))
    if not sizes or min(sizes) <= 0:
        raise ConfigError(f"stage {stage.name!r} explores and has no tasks", field="taskset", fix="submit it anew")
    return turn_at(sequence, sizes)


def located(stage: StageSpec, turn: DatasetTurn) -> tuple[int, int]:
    """Returns (row, epoch) of a turn, for a taskset with rows determined by places. Raises ConfigError for others."""
    tasksets = tasksets_of(stage)
    taskset = tasksets[turn.dataset]
    draw = draw_size(stage, taskset)
    row, epoch = locate(turn.place, rows=taskset.rows, selector=taskset.selector, seed=taskset.seed, draw=draw)
    return sum(earlier.rows for earlier in tasksets[: turn.dataset]) + row, epoch


def task_at(stage: StageSpec, sequence: int) -> tuple[int, int]:
    """Returns (row, epoch) of the group at a sequence, if places determine the rows. Raises ConfigError if not."""
    return located(stage, turn_of(stage, sequence))


def draw_size(stage: StageSpec, taskset: TasksetSpec) -> int:
    """Returns the number of rows per draw of a taskset: its share of an explore step."""
    rows = sum(explored_taskset.rows for explored_taskset in tasksets_of(stage))
    return max(1, min(taskset.rows, stage.batch_size * taskset.rows // rows, limits.DRAW_ROWS))
