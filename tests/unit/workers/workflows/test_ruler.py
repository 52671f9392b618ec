"""RULER: an answer is rewarded by its score among further answers, and a judge without scores fails the rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.ops.errors import RolloutError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import make_task
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer
from rftd.workers.generation.auxiliary.rollout_models import RolloutModels
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.ruler import read_scores
from rftd.workers.workflows.runner import WorkflowRunner

pytestmark = pytest.mark.anyio


class Judge:
    name = "judge"

    def __init__(self, text: str) -> None:
        self.text = text
        self.questions: list[str] = []

    async def chat(self, messages: Sequence[Message], **_: Any) -> AuxiliaryAnswer:
        self.questions.append(messages[-1].content)
        return AuxiliaryAnswer(text=self.text, finish="stop")


async def ranked(judges: Sequence[Judge], *, row: int = 2, **arguments: Any) -> tuple[RolloutResult, ScriptedEngine]:
    spec = TasksetSpec(
        name="sums",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key="a"),
        workflow="math_ruler_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=64),
    )
    engine = ScriptedEngine(replies=("it is 3", "it is 4", "it is 5", "it is 6"))
    models = RolloutModels()
    for judge in judges:
        models.add(judge)  # type: ignore[arg-type]
    runner = WorkflowRunner(
        spec,
        model=SPEC,
        engine=engine,
        tokenizer=ByteTokenizer(),
        auxiliary=lambda *_: models,
    )
    task = make_task({"q": "1+2?", "a": "3"}, spec=spec, row=row)
    return await runner.run(task, UUID(int=1)), engine


async def test_the_answer_is_rewarded_by_its_score_among_its_rivals() -> None:
    judge = Judge("The third.\nScores: [0.1, 0.2, 0.9, 0]")
    result, engine = await ranked([judge])
    assert result.reward == result.metrics["ruler"] == 0.9
    assert result.metrics["gold_reward"] == 0.9, "right, and without tags"
    assert result.text == "it is 3"
    assert len(engine.requests) == 4
    assert len({request.sampling.seed for request in engine.requests}) == 4
    [question] = judge.questions
    assert "<answer 3>\nit is 3\n</answer 3>" in question
    assert question.index("it is 4") < question.index("it is 5") < question.index("it is 3") < question.index("it is 6")


@pytest.mark.parametrize(("row", "score"), [(0, 0.1), (1, 0.2), (3, 0.2)])
async def test_the_place_of_the_answer_moves_with_the_row(row: int, score: float) -> None:
    result, engine = await ranked([Judge("Scores: [0.1, 0.2]")], row=row, rivals=1)
    assert result.reward == score
    assert len(engine.requests) == 2


async def test_without_a_judge_or_its_scores_the_rollout_fails_with_the_reason() -> None:
    with pytest.raises(RolloutError, match="no auxiliary model to judge"):
        await ranked([])
    with pytest.raises(RolloutError, match="no auxiliary model is named 'better'"):
        await ranked([Judge("")], judge="better")
    with pytest.raises(RolloutError, match=r"(?s)the judge 'judge' gave no 4 scores.*row 2"):
        await ranked([Judge("Scores: [1, 0]")])


@pytest.mark.parametrize(
    "text",
    ["", "[1, 0]", "Scores: 1, 0", "Scores: [1, 2]", "Scores: [1, NaN]", 'Scores: [1, "x"]', "Scores: [0, 1] so"],
)
def test_no_other_end_of_a_judges_answer_has_scores(text: str) -> None:
    with pytest.raises(RolloutError, match="gave no 2 scores between 0 and 1"):
        read_scores(text, 2, "judge")
    assert read_scores("Well.\nScores: [1, 0.5]\n", 2, "judge") == [1.0, 0.5]


def test_both_names_of_trinity_are_this_workflow() -> None:
    assert {"math_ruler_workflow", "async_math_ruler_workflow"} <= set(WORKFLOWS.ours())
