"""`rftd compare`: the fields that differ, and the figures of several experiments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd, Served
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.until import poll

from rftd.daemon.config.effective.differences import differing


@pytest.fixture(scope="module")
def longer(served: Served) -> SyntheticRun:
    """A second run in the parts, named `longer`, of more steps."""
    run = SyntheticRun(Recorder(seed=7), name="longer", steps=5, seed=7, faults=False).write()
    asyncio.run(served.parts.log.append(run.recorder.drafts))
    return run


@pytest.mark.usefixtures("longer")
def test_two_experiments_side_by_side(rftd: Rftd) -> None:
    poll(lambda: rftd("get", "longer").status == 0)
    poll(lambda: "completed" in rftd("get", "longer").out)
    said = rftd("compare", "small", "longer")
    assert said.status == 0, said
    lines = said.out.splitlines()
    assert lines[0].split() == ["FIELD", "small", "longer"]
    assert ["stages[1].buffer.total_steps", "3", "5"] in [line.split() for line in lines]
    assert not any(line.startswith(("name", "derived")) for line in lines)
    title = lines.index("reward_mean at equal steps")
    assert lines[title + 1].split() == ["EXPERIMENT", "1", "2", "3", "4", "5"]
    assert lines[title + 2].split()[:3] == ["small", "-", "-"], "warm-up steps have no reward"
    page = json.loads(rftd("compare", "small", "longer", "--by", "tokens", "--json").out)
    fields = {each["field"]: [value.get("value") for value in each["values"]] for each in page["differences"]}
    assert fields["stages[1].buffer.total_steps"] == [3, 5]
    assert len(page["points"]) == 5
    chosen = rftd("compare", "small", "longer", "--metric", "loss", "--points", "1").out
    assert [line for line in chosen.splitlines() if line.endswith("at equal steps")] == ["loss at equal steps"]
    wrong = rftd("compare", "small", "longer", "--metric", "los")
    assert wrong.status == 2
    assert "did you mean loss" in wrong.err


def test_one_that_has_trained_nothing_has_its_file_compared(rftd: Rftd, experiment_file: Path) -> None:
    assert rftd("submit", str(experiment_file), "-s", "name=second").status == 0
    said = rftd("compare", "small", "second")
    assert said.status == 0, said
    assert "second has trained no step yet" in said.err
    assert "at equal" not in said.out


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (["small"], 2, "name two to 32 experiments"),
        (["small", "small"], 2, "named twice"),
        (["small", "nobody"], 3, "no experiment 'nobody'"),
    ],
)
def test_what_is_no_comparison_is_named(rftd: Rftd, names: list[str], status: int, words: str) -> None:
    said = rftd("compare", *names)
    assert said.status == status, said
    assert words in said.err


def test_fields_that_differ() -> None:
    one = {"name": "a", "model": {"path": "m", "rope": {}}, "tags": [1, 2], "sets": [{"name": "x"}], "derived": 1}
    other = {"name": "b", "model": {"path": "m"}, "tags": [1, 3], "sets": [{"name": "x"}, {"name": "y"}], "derived": 2}
    shown = [(path, [value for value in values if value is not values[0]]) for path, values in differing([one, other])]
    assert [path for path, _ in shown] == [("model", "rope"), ("tags",), ("sets", 1, "name")]
    assert list(differing([one, {**one, "name": "c"}])) == []
    unlike = list(differing([{"seed": None}, {}]))
    assert [path for path, _ in unlike] == [("seed",)], "a field that is null is not one that is missing"
