"""An algorithm of a single taskset: the advantage function of its groups, and refusals where it cannot act."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
_TASKS = "{path: /a.jsonl, default_workflow_type: simple_workflow, default_reward_fn_type: math_reward, name: "
_STAGE = (
    "algorithm={algorithm_type: grpo, repeat_times: 4}",
    "buffer.explorer_input.taskset=null",
)


def _tasksets(second: str) -> tuple[str, ...]:
    return (*_STAGE, f"buffer.explorer_input.tasksets=[{_TASKS}one}}, {_TASKS}two, {second}}}]")


def test_a_taskset_has_the_advantage_function_of_its_algorithm(load: Load) -> None:
    second = "algorithm_type: dr_grpo, advantage_fn_args: {epsilon: 0.5}"
    stage = load(overrides=_tasksets(second)).spec.stages[0]
    assert stage.taskset is not None
    assert (stage.taskset.algorithm, stage.taskset.advantage) == ("", "")
    (own,) = stage.more_tasksets
    assert (own.algorithm, own.advantage) == ("dr_grpo", "grpo")
    assert own.advantage_args == {"std_cal_level": "none", "epsilon": 0.5}
    assert stage.algorithm.kind == "grpo"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("algorithm_type: grop", "did you mean 'grpo'"),
        ("algorithm_type: ppo", "needs a critic"),
        ("algorithm_type: on_policy_distill", "needs a teacher"),
        ("algorithm_type: mix", "needs an expert's rows"),
        ("algorithm_type: sft", "trains on rows"),
        ("algorithm_type: gspo", "with the policy loss gspo"),
        ("algorithm_type: reinforceplusplus", "from the complete batch"),
        ("algorithm_type: rae", "from the complete batch"),
        ("algorithm_type: grpo, advantage_fn_args: {std_threshold: 0}", "std_threshold"),
        ("algorithm_type: grpo, advantage_fn_args: {epsilonn: 0}", "tasksets[1].advantage_fn_args.epsilonn"),
    ],
)
def test_an_algorithm_without_effect_on_single_groups_is_refused(errors: Errors, second: str, words: str) -> None:
    (text,) = errors(overrides=_tasksets(second))
    assert words in text
    assert "buffer.explorer_input.tasksets[1]." in text


def test_a_stage_of_complete_batches_has_no_algorithms_of_tasksets(errors: Errors) -> None:
    overrides = (*_tasksets("algorithm_type: dapo"), "algorithm.advantage_fn=reinforceplusplus")
    (text,) = errors(overrides=overrides)
    assert "beside the algorithm of a taskset" in text
    assert "algorithm.advantage_fn" in text


def test_arguments_without_an_algorithm_and_held_out_tasksets_are_warned_of(load: Load) -> None:
    held_out = "buffer.explorer_input.eval_tasksets=[{path: /h.jsonl, algorithm_type: dapo}]"
    warnings = load(overrides=(*_tasksets("advantage_fn_args: {epsilon: 0.5}"), held_out)).spec.warnings
    assert any("tasksets[1].advantage_fn_args has no effect" in text for text in warnings)
    assert any("eval_tasksets[0].algorithm_type has no effect" in text for text in warnings)
