"""Stages that train on the rows of a dataset: what the rows are, and what contradicts that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission
from rftd.streams.spec.sections import Format

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

TRAIN = ("mode=train", "buffer.train_batch_size=4")


def of(algorithm: str, *, rows: str = "path: /rows.jsonl") -> list[str]:
    buffer = f"buffer.trainer_input.experience_buffer={{{rows}}}"
    return [*TRAIN, f"algorithm={{algorithm_type: {algorithm}}}", buffer]


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "cpt"])
def test_rows_are_what_the_algorithm_takes(load: Load, algorithm: str) -> None:
    stage = load(overrides=of(algorithm)).spec.stages[0]
    assert stage.dataset is not None
    assert stage.dataset.schema == algorithm
    assert (stage.kind, stage.train_batch_size) == ("train", 4), "of dpo, rows are pairs"
    assert load(overrides=of(algorithm, rows=f"path: /rows.jsonl, schema_type: {algorithm}")).spec.stages[0] == stage


def test_rows_of_kto_are_pairs_or_have_labels(load: Load) -> None:
    schemas = []
    for rows in ("path: /r", "path: /r, schema_type: dpo", "path: /r, schema_type: kto"):
        stage = load(overrides=of("kto", rows=rows)).spec.stages[0]
        assert stage.dataset is not None
        assert stage.algorithm.policy_loss == "kto"
        schemas.append(stage.dataset.schema)
    assert schemas == ["dpo", "dpo", "kto"]


def test_the_format_of_rows_reaches_them(load: Load) -> None:
    form = (
        "{prompt_type: messages, messages_key: m, tools_key: t, chosen_key: c, rejected_key: r, "
        "completion_key: d, label_key: l, "
        "enable_concatenated_multi_turn: true, chat_template: x, enable_thinking: false}"
    )
    spec = load(overrides=of("sft", rows=f"path: /rows.jsonl, format: {form}")).spec
    assert spec.stages[0].dataset is not None
    assert not [text for text in spec.warnings if "format" in text]
    assert spec.stages[0].dataset.format == Format(
        messages_key="m",
        tools_key="t",
        chosen_key="c",
        rejected_key="r",
        completion_key="d",
        label_key="l",
        enable_concatenated_multi_turn=True,
        chat_template="x",
        enable_thinking=False,
    )


def test_preferences_have_two_responses_and_a_reference_of_their_own(load: Load) -> None:
    algorithm = load(overrides=of("dpo")).spec.stages[0].algorithm
    assert (algorithm.repeat_times, algorithm.policy_loss) == (2, "dpo")
    assert algorithm.policy_loss_args == {"beta": 0.1, "label_smoothing": 0.0}
    assert (algorithm.kl_loss, algorithm.kl_loss_args["kl_coef"]) == ("k2", 0.001)
    asked = load(overrides=[*of("dpo"), "algorithm.repeat_times=8", "algorithm.kl_loss_fn=none"]).spec
    assert (asked.stages[0].algorithm.repeat_times, asked.stages[0].algorithm.kl_loss) == (2, "none")
    assert any("algorithm.repeat_times is 2 with dpo" in text for text in asked.warnings)


@pytest.mark.parametrize(
    ("overrides", "field", "what"),
    [
        ([*of("dpo"), "mode=both"], "mode", "trains on the rows of a dataset"),
        ([*of("cpt"), "mode=explore"], "mode", "trains on the rows of a dataset"),
        ([*TRAIN, "algorithm={algorithm_type: dpo}"], "experience_buffer.path", "needs the path"),
        ([*of("dpo"), "buffer.train_batch_size=0"], "buffer.train_batch_size", "the number of rows per step"),
        (of("dpo", rows="path: /r, schema_type: sft"), "experience_buffer.schema_type", "accepts dpo"),
        (of("dpo", rows="path: /r, schema_type: kto"), "experience_buffer.schema_type", "accepts dpo"),
        (of("kto", rows="path: /r, schema_type: cpt"), "experience_buffer.schema_type", "accepts dpo or kto"),
        (
            [*of("kto", rows="path: /r, schema_type: kto"), "algorithm.policy_loss_fn=simpo"],
            "experience_buffer.schema_type",
            "simpo compares pairs",
        ),
        ([*of("sft"), "algorithm.policy_loss_fn=kto"], "algorithm.policy_loss_fn", "labels of good and bad responses"),
        ([*of("kto"), "algorithm.policy_loss_fn=sft"], "algorithm.policy_loss_fn", "learn the rejected"),
        ([*of("dpo"), "algorithm.policy_loss_fn=sft"], "algorithm.policy_loss_fn", "learn the rejected"),
        ([*of("sft"), "algorithm.policy_loss_fn=dpo"], "algorithm.policy_loss_fn", "no such pairs"),
        ([*of("dpo"), "algorithm.policy_loss_fn=ppo"], "algorithm.policy_loss_fn", "compares with"),
        ([*of("dpo"), "algorithm.policy_loss_fn_args={beta: 0}"], "algorithm.policy_loss_fn_args.beta", "is 0"),
        (
            [*of("dpo"), "algorithm.policy_loss_fn_args={betta: 1}"],
            "algorithm.policy_loss_fn_args.betta",
            "no argument",
        ),
    ],
)
def test_what_contradicts_the_rows_is_refused(errors: Errors, overrides: list[str], field: str, what: str) -> None:
    found = errors(overrides=overrides)
    assert any(f"{field}: " in text and what in text for text in found), found


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "orpo", "kto"])
def test_each_type_of_preferences_takes_pairs_and_the_loss_of_another(load: Load, name: str) -> None:
    stage = load(overrides=of(name)).spec.stages[0]
    assert stage.dataset is not None
    assert stage.dataset.schema == "dpo"
    assert stage.algorithm.policy_loss == name
    other = load(overrides=[*of("dpo"), f"algorithm.policy_loss_fn={name}"]).spec.stages[0].algorithm
    assert (other.kind, other.policy_loss) == ("dpo", name)


@pytest.mark.parametrize("more", [[], ["algorithm.policy_loss_fn_args={ipo_mask_low: 0.2}"]])
def test_who_names_the_clip_of_probabilities_as_it_was_called_is_told_its_name(errors: Errors, more: list[str]) -> None:
    found = errors(overrides=["algorithm.algorithm_type=grpo", "algorithm.policy_loss_fn=ipo", *more])
    assert any("algorithm.policy_loss_fn: " in text and "probability_clip" in text for text in found), found


def test_what_is_for_rows_has_no_effect_on_tasks_and_says_so(load: Load) -> None:
    tasks = "buffer.explorer_input.taskset.format.chat_template=x"
    multi = of("dpo", rows="path: /r, format: {enable_concatenated_multi_turn: true}")
    for overrides, key in (([tasks], "chat_template"), (multi, "enable_concatenated_multi_turn")):
        assert any(f"format.{key} has no effect" in text for text in load(overrides=overrides).spec.warnings)


RECORDED = "path: /recorded.jsonl, storage_type: file"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "rloo"])
def test_mode_train_on_a_file_trains_recorded_rollouts(load: Load, algorithm: str) -> None:
    overrides = ["mode=train", f"algorithm={{algorithm_type: {algorithm}, repeat_times: 4}}", "buffer.batch_size=6"]
    spec = load(overrides=[*overrides, f"buffer.trainer_input.experience_buffer={{{RECORDED}}}"]).spec
    stage = spec.stages[0]
    assert stage.dataset is not None
    assert (spec.half, stage.kind, stage.dataset.schema) == ("both", "train", "experience")
    assert (stage.train_batch_size, stage.taskset, stage.evals) == (24, None, ())
    table = "name: rollouts, path: 'sqlite:////r.db', storage_type: sql"
    stage = load(overrides=[*overrides, f"buffer.trainer_input.experience_buffer={{{table}}}"]).spec.stages[0]
    assert stage.dataset is not None
    assert (stage.kind, stage.dataset.schema, stage.dataset.path) == ("train", "experience", "sqlite:////r.db")


def test_recorded_rollouts_are_no_rows_of_texts(load: Load, errors: Errors) -> None:
    (text,) = errors(overrides=of("grpo", rows=f"{RECORDED}, schema_type: sft"))
    assert "accepts experience" in text
    spec = load(overrides=of("grpo", rows=f"{RECORDED}, format: {{prompt_key: q}}")).spec
    assert any(
        "experience_buffer.format has no effect: recorded rollouts are token ids" in text for text in spec.warnings
    )


@pytest.mark.parametrize("algorithm", ["mix", "on_policy_distill"])
def test_recorded_rollouts_have_neither_experts_nor_teachers(errors: Errors, algorithm: str) -> None:
    texts = errors(overrides=of(algorithm, rows=RECORDED))
    assert any("beside rollouts, but mode train only reads recorded ones" in text for text in texts)
