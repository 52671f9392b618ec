"""The tasks of a stage: the rows of its tasksets, counted on from one to the next.

So a task is one number whatever taskset it is of, and the place in all of them is one position, a fold of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.row_order import DatasetTurn, locate, turn_at
from rftd.streams.spec.spec import StageSpec, TasksetSpec


class TaskPlace(NamedTuple):
    """The taskset that a task of the stage is of, as an index of `tasksets_of`, and its row there."""

    taskset: int
    row: int


def tasksets_of(stage: StageSpec) -> tuple[TasksetSpec, ...]:
    """The tasksets that a stage explores, in the order in which their rows are counted; none of a stage of rows."""
    return () if stage.taskset is None else (stage.taskset, *stage.more_tasksets)


def is_queue(stage: StageSpec) -> bool:
    """True if the stage's tasks are added while the experiment runs."""
    return stage.taskset is not None and stage.taskset.queue


def task_place(stage: StageSpec, row: int) -> TaskPlace:
    """The taskset of the stage's task `row`, and its row there; beyond the last row it is the last taskset."""
    first = 0
    last = len(stage.more_tasksets)
    for number, taskset in enumerate(tasksets_of(stage)):
        if number == last or row < first + taskset.rows:
            return TaskPlace(number, row - first)
        first += taskset.rows
    return TaskPlace(0, row)


def turn_of(stage: StageSpec, sequence: int) -> DatasetTurn:
    """The taskset whose turn the group at this place of the stage is. Raises ConfigError if the stage has no tasks."""
    sizes = tuple(taskset.rows for taskset in tasksets_of(stage))
    if not sizes or min(sizes) <= 0:
        raise ConfigError(f"stage {stage.name!r} explores and has no tasks", field="taskset", fix="submit it anew")
    return turn_at(sequence, sizes)


def located(stage: StageSpec, turn: DatasetTurn) -> tuple[int, int]:
    """(row, epoch) of the turn of a taskset whose rows follow from their places. Raises ConfigError for another one."""
    tasksets = tasksets_of(stage)
    taskset = tasksets[turn.dataset]
    draw = draw_size(stage, taskset)
    row, epoch = locate(turn.place, rows=taskset.rows, selector=taskset.selector, seed=taskset.seed, draw=draw)
    return sum(before.rows for before in tasksets[: turn.dataset]) + row, epoch


def task_at(stage: StageSpec, sequence: int) -> tuple[int, int]:
    """(row, epoch) of the group at this place of a stage whose rows follow from their places. Raises ConfigError."""
    return located(stage, turn_of(stage, sequence))


def draw_size(stage: StageSpec, taskset: TasksetSpec) -> int:
    """The number of rows that are drawn at a time of a taskset: its share of an explore step."""
    rows = sum(other.rows for other in tasksets_of(stage))
    return max(1, min(taskset.rows, stage.batch_size * taskset.rows // rows, limits.DRAW_ROWS))
