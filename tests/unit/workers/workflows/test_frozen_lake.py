"""Frozen lake: lakes always have a way, and a rollout is a walk with each answer as a move."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.ops.errors import RolloutError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.frozen_lake import Lake
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


def way_over(lake: Lake) -> list[str]:
    """A shortest way: each move that comes nearer to the goal."""
    way = []
    while lake.cell != "G":
        for move, back in OPPOSITE.items():
            before = lake.shortest
            if lake.move(move):
                if lake.cell != "H" and lake.shortest < before:
                    way.append(move)
                    break
                lake.move(back)
    return way


async def walked(answers: tuple[str, ...], **columns: Any) -> tuple[RolloutResult, ScriptedEngine]:
    spec = TasksetSpec(
        name="lakes",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key=""),
        workflow="frozen_lake_workflow",
        workflow_args={"max_steps": 8},
        sampling=SamplingSpec(max_tokens=64),
    )
    engine = ScriptedEngine(replies=answers)
    runner = WorkflowRunner(spec, model=SPEC, engine=engine, tokenizer=ByteTokenizer())
    result = await runner.run(make_task({"q": "walk", **columns}, spec=spec, row=3), UUID(int=1))
    return result, engine


@pytest.mark.parametrize("size", [2, 4, 9])
def test_every_lake_has_a_way_and_equal_numbers_give_equal_lakes(size: int) -> None:
    for seed in range(30):
        lake = Lake(seed, size, 0.7)
        assert lake.drawn() == Lake(seed, size, 0.7).drawn()
        assert lake.drawn().count("G") == lake.drawn().count("P") == 1
        assert len(way_over(lake)) >= 1
    assert len({Lake(seed, size, 0.7).drawn() for seed in range(30)}) > 2


@pytest.mark.anyio
async def test_a_walk_to_the_goal_is_rewarded_and_all_answers_are_trained() -> None:
    way = way_over(Lake(5, 4, 0.9))
    result, engine = await walked(tuple(f"I go {move}" for move in way), seed=5, size=4, p=0.9)
    assert (result.reward, result.metrics["goal"], result.metrics["fell"]) == (1.0, 1.0, 0.0)
    assert result.metrics["moves"] == result.metrics["shortest_moves"] == len(way) == len(engine.requests)
    assert result.turns == len(way)
    assert result.metrics["invalid_moves"] == 0.0


@pytest.mark.anyio
async def test_answers_without_a_move_stay_until_the_last_step() -> None:
    result, engine = await walked(("I wait",), seed=5)
    assert (result.reward, result.metrics["moves"], result.metrics["invalid_moves"]) == (0.0, 8.0, 8.0)
    assert len(engine.requests) == 8


@pytest.mark.anyio
@pytest.mark.parametrize("columns", [{"size": 1}, {"size": "wide"}, {"p": 0}, {"seed": "x"}])
async def test_columns_that_are_no_numbers_fail_the_rollout_by_name(columns: dict[str, Any]) -> None:
    with pytest.raises(RolloutError, match="the columns seed, size and p are") as failed:
        await walked(("up",), **columns)
    assert "row 3" in str(failed.value)
