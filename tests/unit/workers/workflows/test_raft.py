"""`raft_workflow`: the best of several answers, drawn until one is good enough."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

pytestmark = pytest.mark.anyio


async def drawn(*replies: str, **arguments: Any) -> tuple[RolloutResult, ScriptedEngine]:
    spec = TasksetSpec(
        name="sums",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key="a"),
        workflow="raft_workflow",
        workflow_args=arguments,
        reward="exact_match_reward",
        sampling=SamplingSpec(max_tokens=64),
    )
    engine = ScriptedEngine(replies=replies)
    runner = WorkflowRunner(spec, model=SPEC, engine=engine, tokenizer=ByteTokenizer())
    return await runner.run(make_task({"q": "1+2?", "a": "3"}, spec=spec, row=2), UUID(int=1)), engine


async def test_the_best_of_several_answers_is_the_rollout() -> None:
    result, engine = await drawn("4", "3", "5")
    assert (result.text, result.reward, result.metrics["tries"]) == ("3", 1.0, 2.0)
    assert result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist() == list(engine.drawn[1].tokens)
    assert len({request.sampling.seed for request in engine.requests}) == 2


async def test_without_a_good_answer_the_first_is_the_rollout_after_all_tries() -> None:
    result, engine = await drawn("4", "5", "6", "7", tries=3)
    assert (result.text, result.reward, result.metrics["tries"], len(engine.requests)) == ("4", 0.0, 3.0, 3)
