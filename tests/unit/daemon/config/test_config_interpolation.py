"""`${...}` is resolved on the client: environment, decoding, references, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

ENV = {"LR": "3e-4", "ON": "yes", "PWD": "/w", "NAME": "run", "LIST": "[1, 2]", "N": "7", "EMPTY_TEXT": ""}
RESOLVED: list[tuple[str, Any]] = [
    ("${oc.env:NAME}", "run"),
    ("${oc.env:NAME,other}", "run"),
    ("${oc.env:UNSET,other}", "other"),
    ("${oc.env:UNSET,./a/b:c}", "./a/b:c"),
    ("${oc.env:UNSET, 'quoted, text'}", "quoted, text"),
    ("${oc.env:UNSET,${oc.env:NAME}}", "run"),
    ("${oc.env:UNSET,}", ""),
    ("${oc.env:UNSET,null}", None),
    ("${oc.env:N}", "7"),
    ("${oc.env:PWD}/data", "/w/data"),
    ("${oc.decode:${oc.env:N}}", 7),
    ("${oc.decode:${oc.env:UNSET,null}}", None),
    ("${oc.decode:${oc.env:UNSET,${oc.env:UNSET_TOO,null}}}", None),
    ("of ${oc.env:UNSET,null}", "of null"),
    ("${oc.decode:${oc.env:LIST}}", [1, 2]),
    ("${oc.decode:'{a: 1e-3}'}", {"a": 1e-3}),
    ("${buffer.batch_size}", 2),
    ("${model}", {"model_path": "/m", "max_model_len": 64}),
    ("${.other}", "beside"),
    ("${..monitor_type}", "swanlab"),
    ("${monitor.monitor_args.other}", "beside"),
    ("a-${project}-${name}-${oc.env:N}", "a-p-n-7"),
    ("${${oc.env:UNSET,project}}", "p"),
    ("${.chain}", "p"),
]


@pytest.mark.parametrize(("text", "value"), RESOLVED)
def test_it_resolves(load: Load, small: str, text: str, value: Any) -> None:
    args = "\nmonitor:\n  monitor_type: swanlab\n  monitor_args:\n    other: beside\n    chain: ${project}\n"
    assert load(f"{small}{args}    x: {text!r}\n", environ=ENV).config["monitor"]["monitor_args"]["x"] == value


def test_text_of_the_environment_stands_for_the_number_that_a_field_takes(load: Load) -> None:
    overrides = [
        "algorithm.optimizer.lr=${oc.env:LR}",
        "deterministic=${oc.env:ON}",
        "buffer.batch_size=${oc.env:N}",
        "group=${oc.env:N}",
        "algorithm.repeat_times=${buffer.batch_size}",
        "trainer.save_interval=${oc.env:UNSET,12}",
        "synchronizer.sync_style=${oc.env:UNSET,FIXED}",
    ]
    submission = load(overrides=overrides, environ=ENV)
    stage = submission.spec.stages[0]
    assert stage.algorithm.optimizer.lr == 3e-4
    assert submission.spec.deterministic is True
    assert (stage.batch_size, stage.algorithm.repeat_times, submission.spec.group) == (7, 7, "7")
    assert stage.trainer.save_interval == 12
    assert type(submission.config["group"]) is str


def test_a_reference_in_the_older_spelling_is_followed(load: Load, small: str) -> None:
    text = small.replace("  batch_size: 2", "  batch_size: 2\n  default_reward_fn_type: math_reward")
    text += "      default_reward_fn_type: ${buffer.default_reward_fn_type}\n"
    assert load(text).spec.stages[0].taskset.reward == "math_reward"  # type: ignore[union-attr]


def test_an_override_is_seen_by_references(load: Load, small: str) -> None:
    text = small.replace("name: n", "name: n\ngroup: g-${model.max_model_len}")
    assert load(text, ["model.max_model_len=99"]).spec.group == "g-99"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${oc.env:UNSET}", "UNSET is not set"),
        ("${nothing.here}", "not in the file"),
        ("${projct}", "did you mean `${project}`?"),
        ("${group}", "refers to itself: group -> group"),
        ("x-${labels.a}", "refers to itself: group -> labels.a -> group|labels.a -> group -> labels.a"),
        ("${oc.create:x}", "not a supported resolver"),
        ("${oc.env:A,b,c}", "needs a name and an optional default"),
        ("${oc.env:BAD NAME}", "needs a name and an optional default"),
        ("${unclosed", "not closed"),
        ("${}", "empty"),
        ("${" * 40, "not closed|nested deeper"),
        ("x-${model}", "a section cannot stand inside a text"),
        ("${oc.decode:'[1'}", "no readable value"),
        ("${........x}", "names no field"),
    ],
)
def test_what_cannot_be_resolved_is_named(errors: Errors, text: str, words: str) -> None:
    overrides = [f"group='{text}'" if "'" not in text else f'group="{text}"', "labels.a=${group}"]
    if "labels.a" not in text:
        overrides.pop()
    found = errors(overrides=overrides)
    assert any(word in error for error in found for word in words.split("|")), found


def test_one_unset_variable_is_one_error_among_the_others(errors: Errors, small: str) -> None:
    text = small.replace("path: /t.jsonl", "path: ${oc.env:UNSET}").replace("name: n", "name: n\ngruop: x")
    first, second = errors(text)
    assert "did you mean 'group'" in first
    assert "export UNSET=" in second
    assert "exp.yaml:17:13" in second


def test_references_that_explode_are_refused(errors: Errors) -> None:
    pairs = ["a0: xxxxxxxxxxxxxxxx"] + [f"a{n}: '" + f"${{labels.a{n - 1}}}" * 16 + "'" for n in range(1, 10)]
    (text,) = errors(overrides=["labels={" + ", ".join(pairs) + "}"])
    assert "expand to more" in text


def test_a_long_chain_of_references_is_refused(errors: Errors) -> None:
    pairs = ["a0: x"] + [f"a{n}: '${{labels.a{n - 1}}}'" for n in range(1, 500)]
    found = errors(overrides=["labels={" + ", ".join(reversed(pairs)) + "}"])
    assert any("follow one another" in text for text in found)


def test_deep_sections_that_refer_to_one_another_stay_within_the_stack(errors: Errors) -> None:
    deep = [f"a{n}: " + "[" * 22 + f"'${{labels.a{n + 1}}}'" + "]" * 22 for n in range(40)]
    found = errors(overrides=["labels={" + ", ".join(deep) + "}"])
    assert any("follow one another" in text for text in found)
