"""The runs of a sweep: every combination of the values that overrides have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.sweep_points import Axis, axes_of, check_size, split_values, swept_runs
from rftd.ops.errors import UsageError

TEXT = """\
project: p
name: mine
seed: 7
checkpoint_root_dir: /c
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: /m, max_model_len: 64}
buffer:
  batch_size: 2
  total_steps: 5
  explorer_input:
    taskset:
      path: /t.jsonl
      default_workflow_type: math_workflow
      rollout_args: {max_tokens: "${buffer.batch_size}"}
"""


def load(overrides: tuple[str, ...]) -> dict[str, Any]:
    return load_text(TEXT, "mine.yaml", overrides=overrides, environ={}).config


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6, 3e-6", ["1e-6", "3e-6"]),
        ("[1, 2],[3, 4]", ["[1, 2]", "[3, 4]"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("{a: 1, b: 2}", ["{a: 1, b: 2}"]),
        ("", [""]),
        ("a,", ["a", ""]),
    ],
)
def test_values_stand_between_commas(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_every_combination_is_a_run_with_every_seed() -> None:
    fixed, axes = axes_of(["buffer.total_steps=9", "algorithm.optimizer.lr=1e-6,3e-6", "buffer.batch_size=2,4"])
    assert fixed == ["buffer.total_steps=9"]
    runs = list(swept_runs(load, fixed, axes, seeds=2))
    assert [(*run.settings.values(), run.seed) for run in runs] == [
        (lr, batch, seed) for lr in ("1e-6", "3e-6") for batch in ("2", "4") for seed in (7, 8)
    ]
    for run in runs:
        assert run.config["seed"] == run.seed
        assert run.config["buffer"]["total_steps"] == 9
        assert run.config["algorithm"]["optimizer"]["lr"] == float(run.settings["algorithm.optimizer.lr"])
        arguments = run.config["buffer"]["explorer_input"]["taskset"]["rollout_args"]
        assert str(arguments["max_tokens"]) == run.settings["buffer.batch_size"], "what refers to a field follows it"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["a=1,,2"], "empty value"),
        (["a=1,2,"], "empty value"),
        (["a=1,2,1"], "the value 1 twice"),
        (["a=1,2", "a=3,4"], "a is given twice"),
        (["seed=1,2"], "seed is not a field to sweep"),
    ],
)
def test_values_that_are_no_sweep_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        axes_of(overrides)


@pytest.mark.parametrize(
    ("counts", "seeds", "words"),
    [
        ((), 1, "nothing varies"),
        ((100, 100), 1, "100 x 100 points are 10,000 runs, more than 64.*1,000 runs are possible at most"),
        ((5, 5), 3, "5 x 5 points with 3 seeds are 75 runs"),
        ((), 65, "1 points with 65 seeds are 65 runs"),
    ],
)
def test_a_sweep_of_one_and_one_of_too_many_are_asked_back(counts: tuple[int, ...], seeds: int, words: str) -> None:
    axes = [Axis(f"field{number}", tuple(map(str, range(count)))) for number, count in enumerate(counts)]
    with pytest.raises(UsageError) as refused:
        check_size(axes, seeds, 64, possible=1000)
    assert re.search(words, f"{refused.value.what} {refused.value.fix}")
    assert "--max-runs" in str(refused.value) or "--seeds" in str(refused.value)


def test_two_values_that_are_one_are_refused() -> None:
    fixed, axes = axes_of(["algorithm.optimizer.lr=1e-6,0.000001"])
    with pytest.raises(UsageError, match="are the same experiment"):
        list(swept_runs(load, fixed, axes, seeds=1))
