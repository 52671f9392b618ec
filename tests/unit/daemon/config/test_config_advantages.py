"""Arguments of advantage functions in an experiment file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_dapo_whole_and_weighted_parts_of_rewards_are_arguments_of_advantages(load: Load, errors: Errors) -> None:
    whole = "{std_threshold: 0, max_response_tokens: 20, overlong_buffer: 5, mask_truncated: true}"
    dapo = ["algorithm.algorithm_type=dapo", f"algorithm.advantage_fn_args={whole}"]
    assert load(overrides=dapo).spec.stages[0].algorithm.advantage_args["overlong_buffer"] == 5
    (text,) = errors(overrides=[dapo[0], "algorithm.advantage_fn_args={overlong_buffer: 5}"])
    assert "max_response_tokens is missing" in text
    gdpo = ["algorithm.algorithm_type=gdpo", "algorithm.advantage_fn_args={weights: {accuracy: 1, form: 0.2}}"]
    assert load(overrides=gdpo).spec.stages[0].algorithm.advantage_args == {"weights": {"accuracy": 1, "form": 0.2}}


def test_raft_needs_no_group_where_another_partys_workflow_tries_the_task_itself(
    load: Load, errors: Errors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "rftd_test_tries", None, {"rftd.workflows": {"tries": "rftd_test_tries:Tries"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    workflow = "buffer.explorer_input.taskset.default_workflow_type"
    raft = ["algorithm.algorithm_type=raft", "algorithm.repeat_times=1"]
    submission = load(overrides=[*raft, f"{workflow}=tries"])
    (stage,) = submission.spec.stages
    assert (stage.algorithm.repeat_times, stage.train_batch_size) == (1, 2)
    assert any("learns from every rollout, regardless of the reward" in text for text in submission.warnings)
    (text,) = errors(overrides=raft)
    assert "with a single answer every advantage is zero" in text
    (text,) = errors(overrides=["algorithm.repeat_times=1", f"{workflow}=tries"])
    assert "grpo compares the answers to one task with each other" in text
