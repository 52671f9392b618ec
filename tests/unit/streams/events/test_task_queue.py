"""The queue of a stage: its tasks by their places in the log, and the steps that its end leaves."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftd.streams.events.task import TasksAdded, TasksEnded
from rftd.streams.folds.task_queue import TaskQueues
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    PolicySpec,
    StageSpec,
    TasksetSpec,
)
from rftd.streams.spec.stage_tasks import located, turn_of


def experiment(*, batch_size: int = 4, repeat_times: int = 2, total_steps: int = 1000, uses: int = 1) -> ExperimentSpec:
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=total_steps,
        batch_size=batch_size,
        train_batch_size=batch_size * repeat_times,
        algorithm=AlgorithmSpec(kind="grpo", repeat_times=repeat_times),
        model=ModelSpec(path="fake", max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        taskset=TasksetSpec(name="queue", path="", queue=True, rows=LAST_INDEX),
        policy=PolicySpec(max_uses=uses),
    )
    return ExperimentSpec(project="p", name="n", job_dir="/j", stages=(stage,), config={})


def added(*tasks: str, stage: int = 0) -> TasksAdded:
    return TasksAdded(stage=stage, tasks=tasks)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_each_task_is_found_where_it_was_added(sizes: list[int]) -> None:
    queues = TaskQueues()
    spec = experiment()
    tasks: list[tuple[int, int]] = []
    for offset, size in enumerate(sizes):
        spec = queues.take(added(*map(str, range(size))), offset * 3, spec, 0, {})
        tasks += [(offset * 3, index) for index in range(size)]
    queue = queues.of(0)
    assert [queue.position_of(row) for row in range(queue.rows)] == tasks
    for row in (-1, queue.rows):
        with pytest.raises(LookupError):
            queue.position_of(row)


@pytest.mark.parametrize(
    ("rows", "planned", "uses", "steps"),
    [(8, 0, 1, 2), (9, 0, 1, 3), (8, 1, 1, 2), (8, 2, 1, 3), (8, 5, 1, 6), (8, 0, 2, 4), (4000, 0, 1, 1000)],
)
def test_the_end_leaves_the_steps_that_the_tasks_fill(rows: int, planned: int, uses: int, steps: int) -> None:
    queues = TaskQueues()
    spec = experiment(uses=uses)
    spec = queues.take(added(*map(str, range(rows))), 7, spec, planned, {0: 0})
    assert spec == experiment(uses=uses)
    ended = queues.take(TasksEnded(stage=0), 8, spec, planned, {0: 0})
    assert ended.stages[0].total_steps == steps
    stage = ended.stages[0]
    turns = [turn_of(stage, sequence) for sequence in (0, rows - 1, rows)]
    assert [located(stage, turn) for turn in turns] == [(0, 0), (rows - 1, 0), (0, 1)]
    # What is told later changes nothing.
    assert queues.take(added("late"), 9, ended, planned, {0: 0}) == ended
    assert queues.take(TasksEnded(stage=0), 10, ended, planned + 5, {0: 0}) == ended
    assert queues.of(0).rows == rows


def test_a_stage_that_collects_tries_each_task_once() -> None:
    spec = experiment()
    explore = msgspec.structs.replace(spec.stages[0], kind="explore", total_steps=0, collect_groups=LAST_INDEX)
    spec = msgspec.structs.replace(spec, stages=(explore,))
    queues = TaskQueues()
    queues.take(added("1", "2", "3"), 1, spec, 0, {})
    assert queues.take(TasksEnded(stage=0), 2, spec, 0, {}).stages[0].collect_groups == 3


def test_what_names_another_stage_has_no_effect() -> None:
    queues = TaskQueues()
    files = msgspec.structs.replace(experiment().stages[0], taskset=TasksetSpec(name="t", path="/t", rows=3))
    spec = msgspec.structs.replace(experiment(), stages=(files,))
    for stage in (-1, 0, 1):
        assert queues.take(added("1", stage=stage), 1, spec, 0, {}) == spec
        assert queues.take(TasksEnded(stage=stage), 2, spec, 0, {}) == spec
    assert queues.by_stage == {}
