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


async def walked(
    answers: tuple[str, ...], arguments: dict[str, Any] | None = None, **columns: Any
) -> tuple[RolloutResult, ScriptedEngine]:
    spec = TasksetSpec(
        name="lakes",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key=""),
        workflow="frozen_lake_workflow",
        workflow_args={"agent_max_steps": 8, **(arguments or {})},
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


def test_no_shortest_way_is_longer_than_the_bound() -> None:
    assert max(Lake(seed, 6, 0.7).shortest for seed in range(40)) > 3
    assert all(1 <= Lake(seed, 6, 0.7, longest_way=3).shortest <= 3 for seed in range(40))
    with pytest.raises(RolloutError, match="of at most 0 moves"):
        Lake(1, 4, 1.0, longest_way=0)


def test_slippery_ice_takes_each_of_three_directions_a_third_of_the_time() -> None:
    ends = {(-1, 0): 0, (0, -1): 0, (0, 1): 0}
    for seed in range(600):
        lake = Lake(seed, 9, 1.0, is_slippery=True)
        lake.player = (4, 4)
        lake.move("up")
        ends[(lake.player[0] - 4, lake.player[1] - 4)] += 1
    assert all(150 < count < 250 for count in ends.values()), ends
    walks = {tuple(Lake(3, 9, 1.0, is_slippery=True).move("up") for _ in range(9)) for _ in range(3)}
    assert len(walks) == 1, "equal seeds and moves give equal walks"


@pytest.mark.anyio
async def test_a_file_of_trinity_sets_moves_lakes_and_ice() -> None:
    theirs = {"env_max_steps": 2, "agent_max_steps": 3, "is_slippery": False}
    result, engine = await walked(("I wait",), theirs, seed=5, size=6, p=0.7)
    assert result.metrics["moves"] == len(engine.requests) == 3.0
    assert result.metrics["shortest_moves"] <= 2


@pytest.mark.anyio
async def test_a_walk_to_the_goal_is_rewarded_and_all_answers_are_trained() -> None:
    way = way_over(Lake(5, 4, 0.9, longest_way=8))
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
