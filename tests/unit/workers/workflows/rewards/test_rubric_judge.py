"""The rubric judge: what it shows the auxiliary model, its reward, and rows without rubrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer
from rftd.workers.workflows.registry import WORKFLOWS, own_reward
from rftd.workers.workflows.rewards.scorer import open_scorer

pytestmark = pytest.mark.anyio


class Judge:
    name = "judge"

    def __init__(self, text: str) -> None:
        self.text = text
        self.questions: list[str] = []

    async def chat(self, messages: Sequence[Message], **_: Any) -> AuxiliaryAnswer:
        self.questions.append(messages[-1].content)
        return AuxiliaryAnswer(text=self.text, finish="stop")


def task(**raw: Any) -> Task:
    return Task(taskset="t", row=2, epoch=0, prompt="Why?", messages=(), truth="", workflow="w", raw=raw)


async def scored(judge: Judge, row: Task, response: str = "Because {rubrics}.") -> float:
    scorer = open_scorer("rubric_judge_reward").beside([judge])  # type: ignore[list-item]
    return (await scorer.score(response, row)).value


async def test_a_rating_by_rubrics_is_a_fraction_of_its_range() -> None:
    judge = Judge("good\nVerdict: 7")
    rubrics = [{"description": "names {response}", "weight": 2.0}, "is short"]
    assert await scored(judge, task(rubric=rubrics)) == pytest.approx(6 / 9)
    [question] = judge.questions
    assert "1. (weight 2.0) names {response}\n2. is short" in question
    assert "Because {rubrics}." in question, "a response's braces stay as they are"
    assert await scored(Judge("Verdict: 1"), task(rubric=["a"])) == 0.0


async def test_no_verdict_and_no_rubrics_fail_the_attempt() -> None:
    with pytest.raises(RolloutError, match="no verdict"):
        await scored(Judge("seven"), task(rubric=["a"]))
    with pytest.raises(RolloutError, match="no list of rubrics under 'rubric'"):
        await scored(Judge("Verdict: 7"), task())


def test_the_workflow_of_its_name_has_this_reward() -> None:
    assert "rubric_judge_workflow" in WORKFLOWS.ours()
    assert own_reward("rubric_judge_workflow") == "rubric_judge_reward"
