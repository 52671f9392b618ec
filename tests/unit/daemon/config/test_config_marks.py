"""Fields of the guide that cannot act: refused where they would change what is trained or sampled, else spoken of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.config.loading import Submission
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.models.tiny_model import make_tokenizer

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
MODEL = "explorer.rollout_model"


@pytest.mark.parametrize(
    ("override", "says", "fix"),
    [
        ("model.rope_theta=1e6", "read from the model's config.json", "config.json"),
        ("model.chat_template_path=/t.jinja", "the client does not read template files", "model.custom_chat_template"),
        ("explorer.auxiliary_models=[{model_path: /a, enable_history: true}]", "the trained model", "leave it out"),
        (f"{MODEL}.max_model_len=32", "is 32, but is not supported yet", "write it in model"),
        (f"{MODEL}.model_path=/other", "the trained model", "model.model_path"),
        ("explorer.auxiliary_models=[{model_path: /a, repetition_penalty: 1.2}]", "set per request", "leave it out"),
        ("data_processor.task_pipeline.config_path=/p.yaml", "are part of the experiment file", "as operators"),
        ("algorithm.enable_router_replay=true", "are not recorded", "leave it out"),
        ("stages=[{stage_name: a, explorer: {rollout_model: {nnodes: 2}}}]", "stages[0].explorer", "leave it out"),
        ("buffer.explorer_input.taskset.format.image_key=img", "only text prompts", "leave it out"),
    ],
)
def test_what_would_change_the_training_and_cannot_yet_is_refused(
    errors: Errors, override: str, says: str, fix: str
) -> None:
    (text,) = errors(overrides=[override])
    assert "RFTD-CFG-009" in text, text
    assert says in text, text
    assert fix in text, text


def test_a_history_is_taken_for_every_answer_is_kept_without_it(load: Load) -> None:
    with_history = load(overrides=[f"{MODEL}.enable_history=true"]).spec
    without = load().spec
    assert with_history.warnings == without.warnings
    assert with_history.stages == without.stages


def test_a_field_may_repeat_what_the_model_says(load: Load) -> None:
    load(overrides=[f"{MODEL}.model_path=/m", f"{MODEL}.max_model_len=64", f"{MODEL}.enable_prompt_truncation=true"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("monitor.detailed_stats=true", "monitor.detailed_stats has no effect"),
        ("service.data_juicer.port=5", "service.data_juicer has no effect: no operator uses it"),
        ("trainer.save_strategy=single_node", "trainer.save_strategy has no effect"),
        (
            "buffer.trainer_input.auxiliary_buffers={a: {path: /a.jsonl, max_retry_times: 9}}",
            "auxiliary_buffers.a.max_retry_times has no effect",
        ),
        (
            "explorer.auxiliary_models=[{model_path: /a, tensor_parallel_size: 2, enforce_eager: true}]",
            "explorer.auxiliary_models[0].enforce_eager has no effect: torch answers",
        ),
    ],
)
def test_what_changes_nothing_is_spoken_of(load: Load, override: str, says: str) -> None:
    assert any(says in text for text in load(overrides=[override]).spec.warnings)


def test_sections_of_explorers_where_rows_are_trained_are_spoken_of(load: Load, small: str) -> None:
    rows = "{train_batch_size: 3, trainer_input: {experience_buffer: {path: /rows.jsonl}}}"
    own = "mode: train, algorithm: {algorithm_type: sft}, explorer: {max_timeout: 9}"
    sft = f"{{stage_name: a, {own}, buffer: {rows}}}"
    said = load(small, overrides=["cluster.node_num=2", "cluster.gpu_per_node=1", f"stages=[{sft}, {{stage_name: b}}]"])
    assert [text for text in said.spec.warnings if "without explorers" in text] == [
        "stages[0].explorer has no effect: the stage trains on rows, without explorers"
    ]
    alone = load(small, overrides=["cluster.node_num=2", f"stages=[{sft}]"]).spec.warnings
    assert "cluster has no effect: the stage trains on rows, without explorers" in alone


def test_experience_settings_without_a_reading_stage_are_reported(load: Load, small: str) -> None:
    field = "buffer.trainer_input.experience_buffer"
    rows = "{train_batch_size: 3, trainer_input: {experience_buffer: {path: /rows.jsonl}}}"
    sft = f"{{stage_name: a, mode: train, algorithm: {{algorithm_type: sft}}, buffer: {rows}}}"
    own = f"{{stage_name: c, mode: train, algorithm: {{algorithm_type: sft}}, buffer: {rows[:-3]}, capacity: 9}}}}}}}}"
    stages = f"stages=[{sft}, {own}, {{stage_name: b}}]"
    said = load(small, overrides=[f"{field}.max_read_timeout=9", stages]).spec.warnings
    assert [text for text in said if "not for rows" in text] == [
        f"stages[1].{field}.capacity has no effect: only used for experiences, not for rows"
    ]
    alone = load(small, overrides=[f"{field}.max_read_timeout=9", f"stages=[{sft}]"]).spec.warnings
    assert f"{field}.max_read_timeout has no effect: only used for experiences, not for rows" in alone


def test_thinking_and_the_end_of_texts_are_as_the_model_entry_says(load: Load) -> None:
    stage = load(overrides=["model.enable_thinking=true", f"{MODEL}.ignore_eos=true"]).spec.stages[0]
    assert stage.model.enable_thinking is True
    assert stage.taskset is not None
    assert stage.taskset.sampling.ignore_eos
    own = load(overrides=["model.enable_thinking=true", f"{MODEL}.enable_thinking=false"]).spec.stages[0]
    assert own.model.enable_thinking is False


def test_thinking_is_a_variable_of_the_chat_template(load: Load, tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path / "m")
    given = [
        f"model.model_path={tmp_path / 'm'}",
        "model.custom_chat_template='1{% if enable_thinking %}+2{% endif %}'",
    ]
    for thinks, shown in (("true", "1+2"), ("false", "1"), ("null", "1")):
        tokenizer = stage_tokenizer(load(overrides=[*given, f"model.enable_thinking={thinks}"]).spec.stages[0])
        assert tokenizer.chat_text([Message(role="user", content="x")], generation_prompt=True) == shown, thinks


def test_a_later_stage_cannot_think_otherwise(errors: Errors) -> None:
    (text,) = errors(
        overrides=["stages=[{stage_name: a}, {stage_name: b, explorer: {rollout_model: {enable_thinking: true}}}]"]
    )
    assert "enable_thinking: is True here and None in stage 'a'" in text
