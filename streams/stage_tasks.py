"""The tasks of a stage: the rows of its tasksets, counted on from one to the next.

So a task is one number whatever taskset it is of, and the place in all of them is one position, a fold of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from rftd.ops.errors import ConfigError
from rftd.streams.row_order import RowOrder, locate_among
from rftd.streams.spec import StageSpec, TasksetSpec


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


def task_at(stage: StageSpec, sequence: int) -> tuple[int, int]:
    """(row, epoch) of the group at this place of the stage. Raises ConfigError if the stage has no tasks."""
    tasksets = tasksets_of(stage)
    if not tasksets or any(each.rows <= 0 for each in tasksets):
        raise ConfigError(f"stage {stage.name!r} explores and has no tasks", field="taskset", fix="submit it anew")
    return locate_among(sequence, tuple(RowOrder(each.rows, each.selector, each.seed) for each in tasksets))
