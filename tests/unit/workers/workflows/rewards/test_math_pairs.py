"""Labelled pairs of a truth and an answer, by kind: what is right is rewarded, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import RewardResult

TASK = Task(
    taskset="t", row=0, epoch=0, prompt="?", messages=(Message("user", "?"),), truth="", workflow="math_workflow"
)
ROWS = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "math_pairs.tsv").read_text(encoding="utf-8").splitlines()
]
KINDS = sorted({row[0] for row in ROWS})


def reward(name: str, response: str, truth: str) -> float:
    result = REWARDS.open(name).score(response, truth, TASK)
    assert isinstance(result, RewardResult)
    return result.parts["accuracy"]


def test_every_kind_has_both_verdicts_and_no_pair_stands_twice() -> None:
    assert len(ROWS) >= 500
    assert len(set(ROWS)) == len(ROWS)
    assert {(kind, verdict) for kind, verdict, *_ in ROWS} == {(kind, v) for kind in KINDS for v in ("right", "wrong")}


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_of_a_kind_are_rewarded_and_wrong_ones_are_not(kind: str) -> None:
    misjudged = []
    for found, verdict, truth, answer in ROWS:
        if found != kind:
            continue
        responses = [answer] if kind == "unmarked" else [f"<answer>{answer}</answer>", f"so \\boxed{{{answer}}}."]
        for response in responses:
            if reward("accuracy_reward", response, truth) != float(verdict == "right"):
                misjudged.append((verdict, truth, response))
    assert misjudged == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("unmarked", "words")])
def test_the_boxed_reward_judges_alike(kind: str) -> None:
    for found, verdict, truth, answer in ROWS:
        if found == kind and verdict == "wrong":
            assert reward("math_boxed_reward", f"\\boxed{{{answer}}}", truth) == 0.0, (truth, answer)
        elif found == kind:
            assert reward("math_boxed_reward", f"\\boxed{{{answer}}}", f"#### {truth}") == 1.0, (truth, answer)
