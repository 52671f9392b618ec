"""Functions handed to the client travel as text, with their imports, or are refused by the name that cannot travel."""

from __future__ import annotations

import asyncio
import math as mathematics
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.fork_desk import EXPERIMENT

import rftd
from rftd.daemon.config.loading import check_config
from rftd.daemon.http.client.function_source import function_source
from rftd.daemon.http.client.submission import submission_of
from rftd.ops.errors import UsageError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.scorer import open_scorer

FACTOR = 2.0


def by_root(response: str, truth: Task) -> float:
    """Uses a module and a name by other names."""
    return mathematics.sqrt(float(Fraction(len(response), 1)))


class Halved:
    """A reward with a constructor."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def score(self, response: str, truth: str, task: Any) -> float:
        return self.share * mathematics.floor(len(response))


def by_factor(response: str) -> float:
    return FACTOR * len(response)


def by_default(response: str, factor: float = FACTOR) -> float:
    return factor * len(response)


@rftd.reward
def marked(response: str) -> float:
    return float(len(response)) / 2


@rftd.workflow
async def flow(task: Any, model: Any, reward: Any) -> Any:
    return task


def closed(scale: float) -> Callable[[str], float]:
    def scaled(response: str) -> float:
        return scale * len(response)

    return scaled


@pytest.mark.parametrize(("part", "score"), [(by_root, 2.0), (Halved, 2.0), (marked, 2.0)])
def test_a_function_scores_as_its_text_does(part: Any, score: float) -> None:
    task = Task(taskset="t", row=0, epoch=0, prompt="", messages=(), truth="", workflow="simple_workflow")
    scorer = open_scorer(f"x.py:{part.__name__}", sources={"x.py": function_source(part)})
    assert asyncio.run(scorer.score("abcd", task)).value == score


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (by_factor, "uses 'FACTOR' of the program around it"),
        (by_default, "does not stand alone: NameError"),
        (closed(2.0), "closes over 'scale'"),
        (lambda response: 1.0, "has no name"),
        (len, "the source text of 'len' is not known"),
    ],
)
def test_what_cannot_travel_is_named(part: Any, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        function_source(part)
    assert problem in str(refused.value)


def test_two_functions_of_one_name_are_refused_by_the_name(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(EXPERIMENT)

    async def by_root(task: Any, model: Any, reward: Any) -> Any:
        return task

    with pytest.raises(UsageError, match=r"two sources are called by_root\.py") as refused:
        submission_of(file, {}, reward=globals()["by_root"], workflow=by_root)
    assert refused.value.field == "default_workflow_type"


def test_a_part_marked_as_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(EXPERIMENT)
    for parts, problem in (
        ({"reward": flow}, "'flow' is marked as a workflow"),
        ({"workflow": marked}, "'marked' is marked as a reward"),
    ):
        with pytest.raises(rftd.RftdError, match=problem):
            submission_of(file, {}, **parts)


def test_a_function_replaces_the_reward_of_every_taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file.yaml"
    file.write_text(EXPERIMENT)
    submission = submission_of(file, {"name": "mine"}, reward=by_root)
    spec = check_config(submission.config)
    exploring = next(stage for stage in spec.stages if stage.kind == "both")
    tasksets = [exploring.taskset, *exploring.evals]
    assert [taskset.reward for taskset in tasksets if taskset is not None] == ["by_root.py:by_root"] * len(tasksets)
    assert exploring.sources["by_root.py"].startswith("from __future__ import annotations")
    assert submission.config["name"] == "mine"
