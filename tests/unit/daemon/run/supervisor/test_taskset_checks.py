"""Arguments and biases that only files and third parties tell wrong: refused when an experiment is handed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.third_party import install

from rftd.daemon.config.issue import say_where
from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor.preflight import check_tasksets
from rftd.ops.errors import ConfigError, DataError, RftdError

TEXT = """
project: p
name: n
checkpoint_root_dir: /c
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: MODEL, max_model_len: 64}
buffer:
  batch_size: 2
  total_steps: 5
  explorer_input:
    taskset:
      path: /t.jsonl
      default_workflow_type: math_workflow
TASKSET
"""
THEIRS = """
from typing import Annotated
import msgspec
from rftd.ops.errors import ConfigError

class Short:
    def __init__(self, *, per_character: Annotated[float, msgspec.Meta(gt=0)] = 0.1, words: str = "") -> None:
        raise AssertionError("opened")

    @staticmethod
    def check_arguments(*, words: str = "", **_: object) -> None:
        if words == "none":
            raise ConfigError("there are no words 'none'", field="words", fix="name a list of words")
"""


def refused(text: str, folder: Path) -> RftdError:
    """The error, with its place in the file, as `rftd submit` shows it."""
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 128}))
    submission = load_text(text.replace("MODEL", str(folder)), "exp.yaml", environ={}, cwd=folder)
    with pytest.raises((ConfigError, DataError)) as caught:
        check_tasksets(submission.spec)
    say_where(caught.value, submission.source)
    return caught.value


def below(taskset: str) -> str:
    return TEXT.replace("TASKSET", "\n".join("      " + line for line in taskset.splitlines()))


def test_a_reward_model_that_is_not_there(tmp_path: Path) -> None:
    error = refused(below("default_reward_fn_type: reward_model\nreward_fn_args:\n  path: ./rm"), tmp_path)
    assert error.field == "buffer.explorer_input.taskset.reward_fn_args.path"
    assert error.where == "exp.yaml:16:15"
    assert error.what == f"no such folder: '{tmp_path / 'rm'}'"
    assert error.fix


def test_a_third_partys_arguments_are_held_against_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "short_words", THEIRS, {"rftd.rewards": {"short": "short_words:Short"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    for given, says in (
        ("per_character: 0", "per_character is 0: expected `float` > 0"),
        ("per_charcter: 1", "takes no argument 'per_charcter'"),
        ("words: none", "there are no words 'none'"),
    ):
        error = refused(below(f"default_reward_fn_type: short\nreward_fn_args:\n  {given}"), tmp_path)
        name = given.partition(":")[0]
        assert error.field == f"buffer.explorer_input.taskset.reward_fn_args.{name}"
        assert says in error.what
        assert error.fix
        assert str(error.where).startswith("exp.yaml:16:")


def test_a_bias_of_a_token_that_the_model_does_not_have(tmp_path: Path) -> None:
    error = refused(below("rollout_args:\n  logit_bias:\n    127: 1.0\n    128: 1.0"), tmp_path)
    assert error.field == "buffer.explorer_input.taskset.rollout_args.logit_bias.128"
    assert error.where == "exp.yaml:17:16"
    assert "token 128 is beyond" in error.what
    assert error.fix == "name token ids of this model, 0 to 127"


def test_a_stage_and_a_held_out_taskset_are_named(tmp_path: Path) -> None:
    evals: dict[str, Any] = {"name": "e", "path": "/e.jsonl", "default_workflow_type": "math_workflow"}
    evals["rollout_args"] = {"logit_bias": {"500": 1.0}}
    own = {"stage_name": "two", "mode": "both", "buffer": {"explorer_input": {"eval_tasksets": [evals]}}}
    text = below("") + "stages: " + json.dumps([{"stage_name": "one", "mode": "both"}, own]) + "\n"
    error = refused(text, tmp_path)
    where = "stages[1].buffer.explorer_input.eval_tasksets[0].rollout_args.logit_bias.500"
    assert error.field == where
    assert str(error.where).startswith("exp.yaml:15:")
