"""Experiments side by side: at equal steps, trained tokens and time, each as its own steps tell it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

pytestmark = pytest.mark.anyio


async def _steps(client: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(f"/v1/experiments/{name}/steps")).json()["items"]
    return items


async def _compared(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get("/v1/comparison", params={"name": ["small", "longer"], **query})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


@pytest.mark.usefixtures("longer")
async def test_figures_at_equal_steps_are_those_of_the_steps(client: httpx.AsyncClient) -> None:
    page = await _compared(client, points=5)
    assert [item["name"] for item in page["items"]] == ["small", "longer"]
    assert [point["at"] for point in page["points"]] == [1, 2, 3, 4, 5], "up to where the shorter one is"
    for position, name in enumerate(("small", "longer")):
        steps = {row["step"]: row for row in await _steps(client, name)}
        for point in page["points"]:
            standing = point["standings"][position]
            row = steps[int(point["at"])]
            assert standing["step"] == row["step"]
            assert standing["figures"]["reward_mean"] == row["reward_mean"]
            assert standing["figures"].items() >= row["metrics"].items()
    last = page["points"][-1]["standings"][0]["figures"]
    assert last["held-out/held_out"] == pytest.approx(0.75)
    assert "held-out/held_out" not in page["points"][0]["standings"][0]["figures"], "not evaluated yet"


@pytest.mark.parametrize("by", ["tokens", "time"])
@pytest.mark.usefixtures("longer")
async def test_at_equal_tokens_and_time_each_shows_the_newest_step_that_fits(
    client: httpx.AsyncClient, by: str
) -> None:
    page = await _compared(client, by=by, points=7)
    field = "tokens" if by == "tokens" else "time_s"
    reached = []
    for position, name in enumerate(("small", "longer")):
        steps = await _steps(client, name)
        whole = await _compared(client, by="steps", points=100)
        taken = {each["standings"][position]["step"]: each["standings"][position][field] for each in whole["points"]}
        if by == "tokens":
            sums = [sum(row["tokens"] for row in steps[: number + 1]) for number in range(5)]
            assert [taken[step] for step in range(1, 6)] == sums
        reached.append(taken[5])
        for point in page["points"]:
            standing = point["standings"][position]
            if standing is None:
                assert taken[1] > point["at"]
                continue
            assert standing[field] <= point["at"]
            following = standing["step"] + 1
            assert following not in taken or taken[following] > point["at"]
    assert page["points"][-1]["at"] <= max(reached)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"name": ["small"]}, "name two to 32 experiments"),
        ({}, "name two to 32 experiments"),
        ({"name": ["small", "small@1"]}, "'small' is named twice"),
    ],
)
async def test_what_is_no_comparison_is_refused(client: httpx.AsyncClient, query: dict[str, Any], words: str) -> None:
    answer = await client.get("/v1/comparison", params=query)
    assert answer.status_code == 422, answer.text
    assert words in answer.text


async def test_without_a_step_there_is_no_point(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    run = SyntheticRun(Recorder(seed=8), name="longer", seed=8)
    run.begin()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    page = await _compared(client)
    assert page["points"] == []
    assert [item["step"] for item in page["items"]] == [5, 0]
