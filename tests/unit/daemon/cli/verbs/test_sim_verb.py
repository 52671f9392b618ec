"""`rftd sim async`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.cli.cli import main

EXAMPLE = str(Path(__file__).parents[5] / "examples" / "gsm8k.yaml")
SMALL = ("--units", "4", "--slots", "8", "--batch", "32", "--steps", "20")


def forecast(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["sim", "async", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_one_policy_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "async", *SMALL, "--bound", "4"]) == 0
    shown = capsys.readouterr().out
    for word in ("system", "optimum", "synchronous", "throughput", "staleness", "idle", "dropped", "drop bias"):
        assert f"\n{word} " in f"\n{shown}", word
    assert "hard_bound, bound 4; 20 steps" in shown


def test_the_figures_are_those_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = forecast(capsys, *SMALL)
    (run,) = report["runs"]
    assert run["steps"] == len(run["course"]) == 20
    assert run["staleness"]["max"] <= run["bound"] == 2
    assert run["of_optimum"] == pytest.approx(run["throughput_per_s"] / run["optimum_per_s"])
    assert run["optimum_per_s"] <= report["best_optimum_per_s"]
    assert run["drop_bias"]["trained_mean_s"] < run["drop_bias"]["generated_mean_s"]


def test_policies_are_compared_in_rows_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "forecast.png"
    rows = ["--compare", "hard_bound:1", "--compare", "in_order:3"]
    assert main(["sim", "async", *SMALL, *rows, "--plot", str(file)]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[-3:-1]] == [["hard_bound", "1"], ["in_order", "3"]]
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 20_000


def test_policy_and_sizes_come_from_an_experiment_file(capsys: pytest.CaptureFixture[str]) -> None:
    size = "buffer.batch_size=8"
    report = forecast(capsys, "--config", EXAMPLE, "-s", size, "--steps", "4", "--step-time", "3s", "--median", "2s")
    assert (report["batch"], report["repeat_times"]) == (64, 8)
    system = report["system"]
    assert system["train_units"] == 1
    assert system["units"] >= 2
    assert system["train_s"] * system["units"] == pytest.approx(3.0)
    assert report["runs"][0]["steps"] == 4


@pytest.mark.parametrize(
    "wrong",
    [
        ("--units", "1"),
        ("--train-units", "16"),
        ("--step-time", "3s"),
        ("--batch", "10", "--repeat-times", "4"),
        ("--policy", "nothing_of_the_kind"),
        ("-s", "name=x"),
        ("--tail", "0.5"),
    ],
)
def test_what_cannot_be_is_refused_before_it_runs(wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "async", *wrong]) == 2
    assert capsys.readouterr().out == ""
