"""`data_processor.experience_pipeline`: operators, their arguments, and the stages that may have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.streams.spec.stage_parts import OperatorSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
SERVICE = "service.data_juicer={server_url: 'http://127.0.0.1:5005', release: 1.6.1}"
JUICER = "{name: data_juicer, args: {operators: [{text_length_filter: {min_len: 5}}]}}"
OPERATORS = "data_processor.experience_pipeline.operators"
RANKED = "buffer.explorer_input.taskset.default_workflow_type=math_ruler_workflow"


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


def test_a_workflow_judged_by_groups_brings_its_operator_before_those_of_the_file(load: Load) -> None:
    judged = [RANKED, "explorer.auxiliary_models=[{model_path: /models/judge}]"]
    spec = load(overrides=[*judged, f"{OPERATORS}=[{{name: reward_filter}}]"]).spec
    assert [operator.name for operator in spec.stages[0].pipeline] == ["ruler", "reward_filter"]
    own = load(overrides=[*judged, f"{OPERATORS}=[{{name: reward_filter}}, {{name: ruler, args: {{tries: 1}}}}]"]).spec
    assert [operator.name for operator in own.stages[0].pipeline] == ["reward_filter", "ruler"]


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ([RANKED], ("explorer.auxiliary_models", "math_ruler_workflow needs a model to judge")),
        ([f"{OPERATORS}=[{{name: reward_filer}}]"], ("operators[0].name", "did you mean 'reward_filter'?")),
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{most: 1}}}}]"], ("operators[0].args.most", "threshold")),
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{threshold: high}}}}]"], ("args.threshold", "high")),
        ([f"{OPERATORS}=[{JUICER}]"], ("service.data_juicer", "is not set, but an operator needs it")),
        (
            [f"{OPERATORS}=[{{name: data_juicer, args: {{config_path: /x}}}}]", SERVICE],
            ("args.config_path", "/x"),
        ),
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


def test_an_operator_of_data_juicer_gets_the_service(load: Load) -> None:
    spec = load(overrides=[f"{OPERATORS}=[{JUICER}]", SERVICE]).spec
    args = spec.stages[0].pipeline[0].args
    assert args["operators"] == [{"text_length_filter": {"min_len": 5}}]
    assert args["service_config"]["server_url"] == "http://127.0.0.1:5005"
    shown = effective_config(spec)
    assert shown["service"]["data_juicer"]["release"] == "1.6.1"
    assert "service_config" not in shown["data_processor"]["experience_pipeline"]["operators"][0]["args"]


def test_a_recipe_of_data_juicer_is_moved_into_its_operator(load: Load, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("project_name: p\nnp: 3\nexport_path: /o\nprocess: [{text_length_filter: {min_len: 5}}]\n")
    named = f"{{name: data_juicer, args: {{config_path: {recipe}}}}}"
    spec = load(overrides=[f"{OPERATORS}=[{named}]", SERVICE]).spec
    args = spec.stages[0].pipeline[0].args
    assert (args["operators"], args["np"]) == ([{"text_length_filter": {"min_len": 5}}], 3)
    staged = f"stages=[{{stage_name: a, data_processor: {{experience_pipeline: {{operators: [{named}]}}}}}}]"
    submission = load(overrides=[staged, SERVICE])
    assert submission.spec.stages[0].pipeline[0].args["np"] == 3
    assert str(recipe) not in str(submission.config), "another machine need not have the recipe"
    assert any("export_path of the recipe: no effect" in text for text in submission.warnings)


@pytest.mark.parametrize(
    ("recipe", "arguments", "text"),
    [
        ("np: 3", "", "the recipe has no list process"),
        ("[1]", "", "is not a mapping"),
        ("process: [", "", "config_path"),
        ("process: ${oc.env:NOBODY_SET_THIS}", "", "NOBODY_SET_THIS"),
        ("process: [{a: {}}]", ", operators: [{b: {}}]", "operators is set as well"),
        (None, "", "recipe.yaml"),
    ],
)
def test_a_wrong_recipe_is_refused_at_its_field(
    errors: Errors, tmp_path: Path, recipe: str | None, arguments: str, text: str
) -> None:
    path = tmp_path / "recipe.yaml"
    if recipe is not None:
        path.write_text(recipe)
    reported = errors(
        overrides=[f"{OPERATORS}=[{{name: data_juicer, args: {{config_path: {path}{arguments}}}}}]", SERVICE]
    )
    assert any("operators[0].args.config_path" in line and text in line for line in reported), reported


def test_rows_operators_unknown_here_are_data_juicers(load: Load) -> None:
    theirs = "data_processor.task_pipeline.operators=[{name: llm_difficulty_score_filter, args: {min_score: 0.0}}]"
    pipeline = load(overrides=[theirs, "service.data_juicer.auto_start=true"]).spec.stages[0].task_pipeline
    assert pipeline is not None
    assert pipeline.juicer is not None
    assert pipeline.juicer.auto_start


def test_a_service_without_operators_of_its_own_has_no_effect(load: Load) -> None:
    warnings = load(overrides=[SERVICE]).spec.warnings
    assert any(text.startswith("service.data_juicer has no effect") for text in warnings)
