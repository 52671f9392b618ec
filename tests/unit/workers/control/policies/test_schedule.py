"""The timelines of the configuration guide: which weights an explore step runs on, and what is due when."""

from __future__ import annotations

import pytest
from synthetic.worlds.desk import stage_of

from rftd.streams.spec.schedule import checkpoint_due, eval_steps, publish_due, step_of_window, window_of
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import TasksetSpec, TrainerSpec


def required_step(sync: Synchronizer, explore_step: int) -> int:
    return step_of_window(sync, window_of(sync, explore_step))


@pytest.mark.parametrize(
    ("interval", "offset", "weights"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5]),
        (2, 0, [0, 0, 2, 2, 4, 4]),
        (3, 0, [0, 0, 0, 3, 3, 3]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (1, 2, [0, 0, 0, 1, 2, 3]),
        (2, 1, [0, 0, 0, 2, 2, 4]),
        (4, 1, [0, 0, 0, 0, 0, 4, 4, 4, 4, 8]),
    ],
)
def test_fixed_timeline(interval: int, offset: int, weights: list[int]) -> None:
    sync = Synchronizer(sync_style="fixed", sync_interval=interval, sync_offset=offset)
    assert [required_step(sync, explore) for explore in range(1, len(weights) + 1)] == weights


@pytest.mark.parametrize("interval", [1, 2, 4])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_an_explore_step_never_waits_for_weights_that_need_its_own_experiences(interval: int, offset: int) -> None:
    sync = Synchronizer(sync_style="fixed", sync_interval=interval, sync_offset=offset)
    for explore in range(1, 50):
        needed = required_step(sync, explore)
        assert needed < explore
        assert needed % interval == 0
        assert explore - 1 - needed <= offset + interval - 1


def test_asynchronous_explorers_never_wait() -> None:
    assert {
        required_step(Synchronizer(sync_style="fully_async", sync_interval=3), explore) for explore in range(1, 20)
    } == {0}


def test_weights_are_announced_at_the_interval_at_evaluations_and_at_the_end() -> None:
    held_out = (TasksetSpec(name="held", path="none", rows=3),)
    stage = stage_of(
        synchronizer=Synchronizer(sync_interval=4),
        evals=held_out,
        eval_interval=3,
        total_steps=10,
    )
    assert [step for step in range(1, 11) if publish_due(stage, step)] == [3, 4, 6, 8, 9, 10]
    assert list(eval_steps(stage)) == [0, 3, 6, 9, 10]
    quiet = stage_of(evals=held_out, eval_interval=0, eval_on_startup=False, eval_at_end=False)
    assert list(eval_steps(quiet)) == []


def test_a_stage_on_a_dataset_announces_its_last_weights_alone() -> None:
    stage = stage_of(kind="train", total_steps=5)
    assert [step for step in range(1, 6) if publish_due(stage, step)] == [5]


def test_checkpoints_at_the_interval_and_at_the_end() -> None:
    stage = stage_of(trainer=TrainerSpec(save_interval=4), total_steps=10)
    assert [step for step in range(1, 11) if checkpoint_due(stage, step)] == [4, 8, 10]
