"""`data_processor.task_pipeline`: operators on rows, their arguments, and the taskset that they make."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.spec.task_pipeline import TasksMade, settings_digest

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
PIPELINE = "data_processor.task_pipeline"
LENGTHS = f"{PIPELINE}.operators=[{{name: text_length_filter, args: {{min_len: 3}}}}]"


def test_operators_and_order_reach_the_stage_and_config_show(load: Load) -> None:
    given = [LENGTHS, f"{PIPELINE}.inputs=[/in.jsonl]", f"{PIPELINE}.top_k=7"]
    spec = load(overrides=[*given, f"{PIPELINE}.target_fields=[question, answer]"]).spec
    stage = spec.stages[0]
    pipeline = stage.task_pipeline
    assert pipeline is not None
    assert pipeline.operators == (OperatorSpec(name="text_length_filter", args={"min_len": 3}),)
    assert (pipeline.inputs, pipeline.top_k, pipeline.text_key) == (("/in.jsonl",), 7, "question")
    assert stage.taskset is not None
    assert stage.taskset.paths == ("/in.jsonl",)
    shown = effective_config(spec)["data_processor"]["task_pipeline"]
    assert shown["operators"][0]["args"]["min_len"] == 3
    assert shown["made"] == {}


def test_a_taskset_made_by_a_pipeline_needs_no_path(load: Load) -> None:
    given = [LENGTHS, f"{PIPELINE}.inputs=[/in.jsonl]", "buffer.explorer_input.taskset.path=null"]
    assert load(overrides=given).spec.stages[0].task_pipeline is not None


def test_without_inputs_the_rows_are_those_of_the_taskset(load: Load) -> None:
    stage = load(overrides=[LENGTHS]).spec.stages[0]
    assert stage.task_pipeline is not None
    assert stage.taskset is not None
    assert stage.task_pipeline.inputs == stage.taskset.paths
    assert stage.task_pipeline.output == ""


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([f"{PIPELINE}.operators=[{{name: text_lengthfilter}}]"], ("operators[0].name", "'text_length_filter'?")),
        (
            [f"{PIPELINE}.operators=[{{name: text_length_filter, args: {{most: 1}}}}]"],
            ("operators[0].args.most", "min_len"),
        ),
        (
            [f"{PIPELINE}.operators=[{{name: text_length_filter, args: {{min_len: short}}}}]"],
            ("operators[0].args.min_len", "short"),
        ),
        ([LENGTHS, f"{PIPELINE}.priority_weights={{difficult: 1}}"], ("priority_weights.difficult", "difficulty")),
        ([f"{PIPELINE}.top_k=3"], ("data_processor.task_pipeline", "has no operators", "name an operator")),
        ([LENGTHS, f"{PIPELINE}.made={{rows: 3}}"], ("task_pipeline.made", "not a record of the daemon")),
    ],
)
def test_mistakes_in_a_pipeline_are_named_at_their_field(
    errors: Errors, overrides: list[str], named: tuple[str, ...]
) -> None:
    (text,) = errors(overrides=overrides)
    assert all(word in text for word in named), text


def test_a_record_of_other_settings_is_refused(load: Load, errors: Errors) -> None:
    given = [LENGTHS, f"{PIPELINE}.inputs=[/in.jsonl]"]
    pipeline = load(overrides=given).spec.stages[0].task_pipeline
    assert pipeline is not None
    made = TasksMade(settings=settings_digest(pipeline), inputs=(), operators=(), rows=1)
    recorded = f"{PIPELINE}.made={msgspec.json.encode(made).decode()}"
    stage = load(overrides=[*given, recorded]).spec.stages[0]
    assert stage.task_pipeline is not None
    assert stage.task_pipeline.made == made
    (text,) = errors(overrides=[*given, recorded, f"{PIPELINE}.top_k=2"])
    assert "task_pipeline.made: was written for a pipeline with other settings" in text


def test_a_queue_of_tasks_has_no_task_pipeline(load: Load) -> None:
    queue = ["buffer.explorer_input.taskset.storage_type=queue", "buffer.explorer_input.taskset.path=null"]
    spec = load(overrides=[LENGTHS, *queue, "buffer.total_steps=3"]).spec
    assert spec.stages[0].task_pipeline is None
    assert any(text.startswith(f"{PIPELINE} has no effect") for text in spec.warnings)
