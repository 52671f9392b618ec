"""`-s key=value` sets one field, and says what it cannot set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

EVALS = """
    eval_tasksets:
      - {path: /e0, default_workflow_type: math_workflow}
      - {path: /e1, default_workflow_type: math_workflow}
"""


def test_fields_lists_and_new_sections_are_set(load: Load, small: str) -> None:
    overrides = [
        "buffer.batch_size=9",
        "buffer.explorer_input.eval_tasksets[0].path=/x",
        "buffer.explorer_input.eval_tasksets.1.rollout_args.stop=['a,b', c]",
        "monitor.monitor_type=swanlab",
        "monitor.monitor_args.a.b=1e-3",
        "model.custom_chat_template=with=equals",
        "labels.k=",
        "buffer.batch_size=10",
        "labels={k: v}",
    ]
    submission = load(small + EVALS, overrides)
    stage = submission.spec.stages[0]
    assert stage.batch_size == 10
    assert [held_out.path for held_out in stage.evals] == ["/x", "/e1"]
    assert stage.evals[1].sampling.stop == ("a,b", "c")
    assert submission.config["monitor"]["monitor_args"] == {"a": {"b": 1e-3}}
    assert (stage.model.chat_template, submission.spec.labels) == ("with=equals", {"k": "v"})


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("buffer.batchsize=4", "did you mean 'batch_size'?"),
        ("bufer.batch_size=4", "did you mean 'buffer'?"),
        ("buffer.batch_size", "written key=value"),
        ("=4", "written key=value"),
        ("a..b=4", "written key=value"),
        ("buffer.batch_size=four", "expected a whole number, got the text 'four'"),
        ("buffer.batch_size.x=4", "is a single value, it has no field x"),
        ("buffer.explorer_input.eval_tasksets[2].path=/x", "is a list of 2"),
        ("buffer.explorer_input.eval_tasksets.path=/x", "is a list of 2"),
        ("buffer={", "the value is not valid YAML"),
        ("labels={a: 1, a: 2}", "appears twice"),
        (".".join(["a"] * 60) + "=1", "written key=value"),
        (".".join(["a"] * 20) + "=[[[[[1]]]]]", "nested deeper"),
    ],
)
def test_what_cannot_be_set_names_the_flag(errors: Errors, small: str, override: str, words: str) -> None:
    found = errors(small + EVALS, [override])
    assert any(words in text and "--> -s" in text for text in found), found


def test_an_override_mends_the_file(load: Load, small: str) -> None:
    assert (
        load(small.replace("batch_size: 2", "batch_size: two"), ["buffer.batch_size=2"]).spec.stages[0].batch_size == 2
    )
