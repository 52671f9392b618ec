"""Fields that are left out, or have nothing behind them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_without_any_workflow_it_is_the_worked_answer_and_says_so(load: Load, small: str) -> None:
    named = "      default_workflow_type: math_workflow\n"
    assert named in small
    submission = load(small.replace(named, ""))
    taskset = submission.spec.stages[0].taskset
    assert taskset is not None
    assert taskset.workflow == "math_workflow"
    (told,) = [each for each in submission.warnings if "names no workflow" in each]
    assert told.startswith("buffer.explorer_input.taskset.default_workflow_type ")
    by_row = submission.config["buffer"]["explorer_input"]["taskset"] | {"format": {"workflow_key": "kind"}}
    rows = load(overrides=[f"buffer.explorer_input.taskset={json.dumps(by_row)}"])
    assert not [each for each in rows.warnings if "names no workflow" in each]


def test_a_section_a_list_or_a_mapping_with_nothing_behind_it_is_left_out(load: Load, errors: Errors) -> None:
    bare = load().spec.stages
    nothing = ["stages=null", "buffer.explorer_input.eval_tasksets=null", "explorer.env_vars=null", "cluster=null"]
    nothing += ["buffer.trainer_input.auxiliary_buffers=null", "buffer.trainer_input.experience_buffer.path=null"]
    assert load(overrides=nothing).spec.stages == bare
    empty = load(overrides=["buffer.trainer_input.auxiliary_buffers={rows: null}"])
    assert empty.spec.stages == bare
    assert any(each.startswith("buffer.trainer_input.auxiliary_buffers.rows has no effect") for each in empty.warnings)
    (text,) = errors(overrides=["buffer.explorer_input.taskset.path=null"])
    assert "buffer.explorer_input.taskset.path: is required" in text


@pytest.mark.parametrize("mode", [["mode=explore"], ["mode=train"], ["mode=explore", "explorer.collect_only=true"]])
def test_who_explores_without_a_trainer_beside_may_take_every_slot(load: Load, errors: Errors, mode: list[str]) -> None:
    slots = ["cluster={node_num: 1, gpu_per_node: 4}", "explorer.rollout_model.engine_num=4"]
    assert load(overrides=[*slots, *mode]).spec.stages[0].rollout.explorers == 4
    (text,) = errors(overrides=slots)
    assert "the trainer needs one" in text
    (text,) = errors(overrides=[*slots, *mode, "explorer.rollout_model.engine_num=5"])
    assert "1 x 4 = 4 slots, but explorers need 5" in text
