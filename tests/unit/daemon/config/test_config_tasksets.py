"""`buffer.explorer_input.tasksets`: several training tasksets of one stage, from the file to counted rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.daemon.run.supervisor.preflight import check_tasksets, preflight
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
NONE = "buffer.explorer_input.taskset=null"
FAKE = ["trainer.trainer_type=fake", "explorer.rollout_model.engine_type=fake", "buffer.total_steps=null"]


def several(*tasksets: str) -> list[str]:
    return [NONE, f"buffer.explorer_input.tasksets=[{', '.join(tasksets)}]"]


def stage_of(submission: Submission) -> StageSpec:
    (stage,) = submission.spec.stages
    return stage


def test_each_taskset_has_its_own_workflow_sampling_and_order(load: Load) -> None:
    sums = "{path: /a.jsonl, name: sums, default_workflow_type: simple_workflow, default_reward_fn_type: math_reward}"
    others = "{path: /b.jsonl, rollout_args: {temperature: 0.5}, data_selector: {selector_type: shuffle, seed: 7}}"
    first, second = tasksets_of(stage_of(load(overrides=several(sums, others))))
    assert (first.name, first.workflow, first.reward, first.selector) == (
        "sums",
        "simple_workflow",
        "math_reward",
        "sequential",
    )
    assert (second.name, second.workflow, second.selector, second.seed) == ("taskset_1", "math_workflow", "shuffle", 7)
    assert (first.sampling.temperature, second.sampling.temperature) == (1.0, 0.5)


def test_a_taskset_may_have_several_paths(load: Load, errors: Errors) -> None:
    path = "buffer.explorer_input.taskset.path"
    submission = load(overrides=[f"{path}=[a.jsonl, /b/*.parquet, openai/gsm8k]"])
    (taskset,) = tasksets_of(stage_of(submission))
    first, second, third = taskset.paths
    assert first.startswith("/") and first.endswith("/a.jsonl"), "below the file's folder"
    assert (second, third) == ("/b/*.parquet", "openai/gsm8k")
    shown = effective_config(submission.spec)["buffer"]["explorer_input"]["taskset"]["path"]
    assert shown == [first, second, third]
    assert tasksets_of(stage_of(load(overrides=[f"{path}=[/a.jsonl]"])))[0].paths == ("/a.jsonl",)
    for wrong, what in (
        ("[]", "is required"),
        ("[/a, '']", "is required"),
        ("[/a, /b, /a]", "'/a' is listed twice"),
        ("[/a, 7]", "expected text, a list of texts"),
        ("{file: /a}", "expected text, a list of texts"),
        ("['postgresql://h/d']", "not from a URL"),
    ):
        (text,) = errors(overrides=[f"{path}={wrong}"])
        assert f"{path}: {what}" in text or (path in text and what in text)


def test_a_table_of_a_database_is_named_by_its_url(load: Load, errors: Errors) -> None:
    taskset = "buffer.explorer_input.taskset"
    table = [f"{taskset}.storage_type=sql", f"{taskset}.name=tasks"]
    for path, shown in (
        ("sqlite:////d/t.db", "sqlite:////d/t.db"),
        ("{env: TASKS}", {"env": "TASKS"}),
        ("postgresql://me@h/d", "postgresql://me@h/d"),
    ):
        effective = effective_config(load(overrides=[*table, f"{taskset}.path={path}"]).spec)
        section = effective["buffer"]["explorer_input"]["taskset"]
        assert (section["storage_type"], section["path"], section["name"]) == ("sql", shown, "tasks")
    for path, what in (("/t.jsonl", "needs the URL of a database"), ("postgresql://me:pw@h/d", "password")):
        (text,) = errors(overrides=[*table, f"{taskset}.path={path}"])
        assert what in text
        assert "pw" not in text.replace("password", "")
    (text,) = errors(overrides=[table[0], f"{taskset}.path=sqlite:////d/t.db"])
    assert f"{taskset}.name: is required: the name of the table" in text


def test_what_is_wrong_with_one_of_them_is_said_at_its_place(load: Load, errors: Errors) -> None:
    texts = errors(overrides=several("{path: /a.jsonl, name: a}", "{name: a}", "{path: /c.jsonl, name: a}"))
    assert any("buffer.explorer_input.tasksets[1].path: is required" in text for text in texts)
    assert any("tasksets[2].name: two training tasksets are named 'a'" in text for text in texts)
    (greedy,) = errors(overrides=several("{path: /a.jsonl}", "{path: /b.jsonl, rollout_args: {temperature: 0}}"))
    assert "tasksets[1].rollout_args.temperature: is 0" in greedy
    tolerant = load(overrides=several("{path: /a.jsonl}", "{path: /b.jsonl, repeat_times: 9}"))
    assert "tasksets[1].repeat_times 9 is overridden by algorithm.repeat_times 4" in tolerant.warnings


@pytest.mark.parametrize(
    ("name", "said"), [('"a\\nb"', "letters, digits"), ('"\\u202eb"', "letters, digits"), ("n" * 121, "120")]
)
def test_a_name_that_no_table_can_show_is_refused(errors: Errors, name: str, said: str) -> None:
    """One of ten thousand characters filled five pages of `rftd why`."""
    (text,) = errors(overrides=several(f"{{path: /a.jsonl, name: {name}}}", "{path: /b.jsonl}"))
    assert "tasksets[0].name: stands in events, logs and metrics: " in text
    assert said in text


def test_a_name_may_be_words_of_any_language(load: Load) -> None:
    for name in ("openai/gsm8k", "t\u00fc \u6570\u5b66", "n" * 120):
        (first, _) = tasksets_of(
            stage_of(load(overrides=several(f'{{path: /a.jsonl, name: "{name}"}}', "{path: /b.jsonl}")))
        )
        assert first.name == name


def test_an_epoch_is_every_row_of_all_of_them(load: Load, tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1", "response": "2"}\n' * rows)
    pair = several("{path: a.jsonl}", "{path: b.jsonl}")
    counted = preflight(load(overrides=[*pair, *FAKE, "buffer.total_epochs=3"]).spec).stages[0]
    assert [each.rows for each in tasksets_of(counted)] == [3, 5]
    assert all(each.digest for each in tasksets_of(counted))
    assert counted.total_steps == 3 * 8 // 2
    collected = [*pair, *FAKE, "mode=explore", "explorer.collect_only=true"]
    assert preflight(load(overrides=collected).spec).stages[0].collect_groups == 8
    judged = several("{path: a.jsonl}", "{path: b.jsonl, default_reward_fn_type: llm_judge_reward}")
    with pytest.raises(ConfigError) as caught:
        check_tasksets(load(overrides=[*judged, *FAKE]).spec)
    assert caught.value.field == "buffer.explorer_input.tasksets[1].default_reward_fn_type"


def test_a_stage_may_take_the_place_of_one_by_several(load: Load) -> None:
    stages = "stages=[{stage_name: a}, {stage_name: b, buffer: {explorer_input: {tasksets: [{path: /x}, {path: /y}]}}}]"
    first, second = load(overrides=[stages]).spec.stages
    assert [each.path for each in tasksets_of(first)] == ["/t.jsonl"]
    assert [each.path for each in tasksets_of(second)] == ["/x", "/y"]


def test_the_view_of_an_experiment_has_each_of_them(load: Load) -> None:
    submission = load(overrides=several("{path: /a.jsonl}", "{path: /b.jsonl}"))
    given = effective_config(submission.spec)["buffer"]["explorer_input"]
    assert [each["path"] for each in given["tasksets"]] == ["/a.jsonl", "/b.jsonl"]
    assert "taskset" not in given


ENVIRONMENT = ["buffer.explorer_input.taskset={path: 'gymnasium://FrozenLake-v1?size=9'}"]


def test_an_environment_is_a_path_with_the_workflow_that_plays_it(load: Load) -> None:
    submission = load(overrides=ENVIRONMENT)
    taskset = stage_of(submission).taskset
    assert taskset is not None
    assert (taskset.workflow, taskset.workflow_args) == (
        "environment_workflow",
        {"environment": "gymnasium://FrozenLake-v1?size=9"},
    )
    section = effective_config(submission.spec)["buffer"]["explorer_input"]["taskset"]
    assert (section["storage_type"], section["path"]) == ("file", "gymnasium://FrozenLake-v1?size=9")
    assert not any("names no workflow" in warning for warning in submission.warnings)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("path=gymnasium://", "taskset.path: 'gymnasium://' is not the address of an environment"),
        ("default_workflow_type=simple_workflow", "is simple_workflow, but the path is an environment"),
        ("workflow_args={max_steps: 0}", "workflow_args"),
        ("path=command://sums", "environment_command"),
    ],
)
def test_a_field_that_contradicts_an_environment_is_refused(errors: Errors, override: str, reason: str) -> None:
    texts = errors(overrides=[*ENVIRONMENT, f"buffer.explorer_input.taskset.{override}"])
    assert any(reason in text for text in texts), texts


QUEUE = ["buffer.explorer_input.taskset.storage_type=queue", "buffer.explorer_input.taskset.path=null"]


def test_a_queue_has_no_file_and_is_what_it_was_written(load: Load) -> None:
    stage = stage_of(load(overrides=[*QUEUE, "buffer.total_steps=50"]))
    assert stage.taskset is not None
    assert (stage.taskset.queue, stage.taskset.path, stage.total_steps) == (True, "", 50)
    written = effective_config(load(overrides=[*QUEUE, "buffer.total_steps=50"]).spec)
    taskset = written["buffer"]["explorer_input"]["taskset"]
    assert (taskset["storage_type"], taskset["path"]) == ("queue", None)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("buffer.explorer_input.taskset.path=/a.jsonl", "taskset.path: is set, but the tasks are a queue"),
        ("buffer.explorer_input.taskset.limit_rows=3", "taskset.limit_rows: is set, but the tasks are a queue"),
        ("buffer.explorer_input.taskset.data_selector.selector_type=shuffle", "a queue has the order in which"),
        ("buffer.total_steps=null", "buffer.total_steps: is required: the number of tasks in a queue"),
    ],
)
def test_what_a_queue_cannot_have_is_refused(errors: Errors, override: str, said: str) -> None:
    (text,) = errors(overrides=[*QUEUE, "buffer.total_steps=50", override])
    assert said in text


def test_only_a_taskset_that_is_alone_can_be_a_queue(errors: Errors) -> None:
    texts = errors(overrides=several("{storage_type: queue}", "{path: /b.jsonl}"))
    assert any(
        "tasksets[0].storage_type: is queue, but only a single buffer.explorer_input.taskset" in text for text in texts
    )


SELECTOR = "buffer.explorer_input.taskset.data_selector"
DIFFICULTY = "selector_type: difficulty_based, feature_keys: [weak, strong]"


def test_a_selector_that_draws_has_its_columns_and_its_arguments_with_defaults(load: Load) -> None:
    given = load(overrides=[f"{SELECTOR}={{{DIFFICULTY}, seed: 7, kwargs: {{tau: 0.5}}}}"])
    taskset = stage_of(given).taskset
    assert taskset is not None
    assert (taskset.selector, taskset.seed, taskset.feature_keys) == ("difficulty_based", 7, ("weak", "strong"))
    assert taskset.selector_args == {"tau": 0.5}
    shown = effective_config(given.spec)["buffer"]["explorer_input"]["taskset"]["data_selector"]
    assert shown["kwargs"] == {
        "m": 16,
        "lamb": 0.2,
        "rho": 0.2,
        "target_reward": 1.0,
        "tau": 0.5,
        "do_sample": False,
    }


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (
            "{selector_type: randm}",
            "selector_type: unknown data selector 'randm'; known: sequential, shuffle, random, ",
        ),
        (
            "{selector_type: offline_easy2hard}",
            "feature_keys: offline_easy2hard needs columns, but selector_args names none",
        ),
        (
            "{selector_type: difficulty_based, feature_keys: [a]}",
            "difficulty_based needs two columns, and 1 are named",
        ),
        (f"{{{DIFFICULTY}, kwargs: {{lamb: 2}}}}", "kwargs.lamb"),
    ],
)
def test_a_selector_that_cannot_be_is_refused(errors: Errors, selector: str, said: str) -> None:
    (text,) = errors(overrides=[f"{SELECTOR}={selector}"])
    assert said in text


def test_what_a_selector_has_no_use_for_is_a_warning(load: Load) -> None:
    given = load(overrides=[f"{SELECTOR}={{selector_type: shuffle, feature_keys: [a], kwargs: {{m: 4}}}}"])
    assert sum("has no effect: shuffle uses only the positions of rows" in text for text in given.spec.warnings) == 2


def test_held_out_rows_are_answered_in_order_whatever_selector_is_named(load: Load) -> None:
    held_out = "{path: /b.jsonl, data_selector: {selector_type: shuffle}}"
    given = load(overrides=[f"buffer.explorer_input.eval_tasksets=[{held_out}]"])
    assert [each.selector for each in stage_of(given).evals] == ["sequential"]
    assert any("has no effect: held-out rows are answered in order" in text for text in given.spec.warnings)
