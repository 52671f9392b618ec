"""Section `explorer`: parts of groups, rollouts at once, time-outs, what is not waited for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.ops import limits
from rftd.streams.spec.sections import DynamicTimeout, OverRollout, StragglerReissue

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

ASYNC = "synchronizer.sync_style=fully_async"


def test_nothing_is_cut_short_unless_it_is_asked_for(load: Load) -> None:
    rollout = load().spec.stages[0].rollout
    assert (rollout.concurrency, rollout.lease_rollouts, rollout.threads_each) == (8, 0, False)
    assert (rollout.dynamic_timeout.enable, rollout.over_rollout.ratio, rollout.straggler_reissue.enable) == (
        False,
        0.0,
        False,
    )


def test_explorers_have_a_slot_each(load: Load, errors: Errors) -> None:
    most = limits.WORKER_SLOTS
    assert load(overrides=[f"explorer.rollout_model.engine_num={most}"]).spec.stages[0].rollout.explorers == most
    (text,) = errors(overrides=[f"explorer.rollout_model.engine_num={most + 1}"])
    assert f"is {most + 1}, but an experiment has {most} slots for explorers" in text


@pytest.mark.parametrize(
    ("mode", "most", "engines", "at_once", "part"),
    [
        # A runner does one rollout at a time; runner_per_model is 3, batches are of 8 tasks, groups of 4 rollouts.
        ("sequential", None, 1, 3, 0),
        ("sequential", 2, 1, 3, 2),
        # ... or those of its part together.
        ("asynchronous", None, 1, 12, 0),
        ("asynchronous", 2, 1, 6, 2),
        ("multi-threading", 3, 1, 9, 3),
        ("asynchronous", 9, 1, 12, 0),
        # Never more runners than an explorer's share of the batch.
        ("asynchronous", None, 4, 8, 0),
    ],
)
def test_rollouts_at_once_follow_the_mode(
    load: Load, mode: str, most: int | None, engines: int, at_once: int, part: int
) -> None:
    overrides = [
        "buffer.batch_size=8",
        "explorer.runner_per_model=3",
        f"explorer.concurrent_mode={mode}",
        f"explorer.rollout_model.engine_num={engines}",
        f"explorer.max_repeat_times_per_runner={'null' if most is None else most}",
    ]
    spec = load(overrides=overrides).spec
    rollout = spec.stages[0].rollout
    assert (rollout.concurrency, rollout.lease_rollouts) == (at_once, part)
    assert rollout.threads_each == (mode == "multi-threading")
    assert any("runner_per_model 3 becomes 2" in text for text in spec.warnings) == (engines == 4)


def test_what_is_asked_for_reaches_the_dispatcher(load: Load) -> None:
    rollout = (
        load(
            overrides=[
                ASYNC,
                "explorer.dynamic_timeout={enable: true, warmup_min_steps: 4, ratio: 2.5}",
                "explorer.over_rollout={ratio: 0.5, wait_after_min: 7, return_partial_tasks: true}",
                "explorer.straggler_reissue={enable: true, ratio: 4}",
                "explorer.rollout_model.engine_num=2",
            ]
        )
        .spec.stages[0]
        .rollout
    )
    assert rollout.dynamic_timeout == DynamicTimeout(enable=True, ratio=2.5, warmup_min_steps=4)
    assert rollout.over_rollout == OverRollout(ratio=0.5, wait_after_min=7.0, return_partial_tasks=True)
    assert rollout.straggler_reissue == StragglerReissue(enable=True, ratio=4.0)


def test_a_fixed_schedule_waits_for_every_task(errors: Errors) -> None:
    (text,) = errors(overrides=["explorer.over_rollout.ratio=0.5"])
    assert "explorer.over_rollout.ratio" in text
    assert "sync_style: fully_async" in text


def test_what_depends_on_durations_is_not_deterministic(errors: Errors) -> None:
    (text,) = errors(overrides=["deterministic=true", "explorer.dynamic_timeout.enable=true"])
    assert "explorer.dynamic_timeout.enable" in text
    assert "deterministic" in text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([ASYNC, "explorer.over_rollout.ratio=0.4"], "all 2 tasks are needed; one task can be skipped from 0.5"),
        (
            ["explorer.over_rollout.return_partial_tasks=true"],
            "return_partial_tasks has no effect: explorer.over_rollout.ratio is 0",
        ),
        (["explorer.dynamic_timeout={enable: true, ratio: 0.9}"], "so the mean falls"),
        (["explorer.straggler_reissue.enable=true"], "before a second explorer joins"),
    ],
)
def test_what_will_disappoint_is_said(load: Load, overrides: list[str], words: str) -> None:
    assert any(words in text for text in load(overrides=overrides).spec.warnings)
