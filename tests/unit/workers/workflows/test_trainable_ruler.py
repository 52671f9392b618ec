"""`math_trainable_ruler_workflow`: answers earn the scores of a judgement, and the judgement its nearness to truth."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.runner import WorkflowRunner

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("judgement", "rewards"),
    [("Scores: [1, 0.5]", [1.0, 0.5, 0.75]), ("I cannot say.", [1.0, 0.0, 0.0])],
)
async def test_answers_earn_their_scores_and_the_judgement_its_truth(judgement: str, rewards: list[float]) -> None:
    spec = TasksetSpec(
        name="sums",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key="a"),
        workflow="math_trainable_ruler_workflow",
        workflow_args={"answers": 2},
        reward="exact_match_reward",
        sampling=SamplingSpec(max_tokens=64),
    )
    engine = ScriptedEngine(replies=("3", "4", judgement))
    runner = WorkflowRunner(spec, model=SPEC, engine=engine, tokenizer=ByteTokenizer())
    result = await runner.run(make_task({"q": "1+2?", "a": "3"}, spec=spec, row=2), UUID(int=1))
    assert [step.reward for step in result.steps] == pytest.approx(rewards)
    assert [step.role for step in result.steps] == ["answer", "answer", "judge"]
