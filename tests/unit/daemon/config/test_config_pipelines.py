"""`data_processor.experience_pipeline`: operators, their arguments, and the stages that may have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.streams.spec.stage_parts import OperatorSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
OPERATORS = "data_processor.experience_pipeline.operators"


def test_operators_reach_the_stage_in_order_and_config_show(load: Load) -> None:
    filters = f"{OPERATORS}=[{{name: reward_filter, args: {{threshold: 0.5}}}}, {{name: mask_response_truncated}}]"
    spec = load(overrides=[filters]).spec
    assert spec.stages[0].pipeline == (
        OperatorSpec(name="reward_filter", args={"threshold": 0.5}),
        OperatorSpec(name="mask_response_truncated"),
    )
    shown = effective_config(spec)["data_processor"]["experience_pipeline"]["operators"]
    assert shown == [
        {"name": "reward_filter", "args": {"threshold": 0.5}},
        {"name": "mask_response_truncated", "args": {}},
    ]


def test_a_stage_may_have_operators_of_its_own(load: Load) -> None:
    stages = "stages=[{stage_name: a}, {stage_name: b, data_processor: {experience_pipeline: {operators: []}}}]"
    spec = load(overrides=[f"{OPERATORS}=[{{name: reward_std_filter}}]", stages]).spec
    assert [len(stage.pipeline) for stage in spec.stages] == [1, 0]


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ([f"{OPERATORS}=[{{name: reward_filer}}]"], ("operators[0].name", "did you mean 'reward_filter'?")),
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{most: 1}}}}]"], ("operators[0].args.most", "threshold")),
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{threshold: high}}}}]"], ("args.threshold", "high")),
        ([f"{OPERATORS}=[{{name: data_juicer}}]"], ("operators[0].name", "Data-Juicer is not supported yet")),
        (
            [
                f"{OPERATORS}=[{{name: reward_filter}}]",
                "explorer.over_rollout={ratio: 0.5, return_partial_tasks: true}",
            ],
            ("explorer.over_rollout.return_partial_tasks", "skip data_processor.experience_pipeline"),
        ),
    ],
)
def test_wrong_operators_are_refused_at_their_field(
    errors: Errors, overrides: list[str], texts: tuple[str, ...]
) -> None:
    reported = "\n".join(errors(overrides=overrides))
    for text in texts:
        assert text in reported


def test_operators_of_an_experiment_without_rollouts_have_no_effect(load: Load) -> None:
    rows = ["mode=train", "algorithm.algorithm_type=sft", "buffer.train_batch_size=4"]
    rows.append("buffer.trainer_input.experience_buffer.path=/rows.jsonl")
    spec = load(overrides=[f"{OPERATORS}=[{{name: reward_filter}}]", *rows]).spec
    assert spec.stages[0].pipeline == ()
    assert any("experience_pipeline.operators has no effect" in text for text in spec.warnings)
