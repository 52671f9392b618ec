"""The timeline of a run: rollouts in lanes, trained steps, idle spans by their hold; thinned when it is long."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.ops.clock import time_ns_of
from rftd.storage.queries import timeline as queries
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed

pytestmark = pytest.mark.anyio


async def read(client: httpx.AsyncClient, name: str = "small", **query: Any) -> dict[str, Any]:
    answer = await client.get(f"/v1/experiments/{name}/timeline", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_every_rollout_and_step_of_the_run_is_there(client: httpx.AsyncClient) -> None:
    whole = await read(client)
    rows = (await client.get("/v1/experiments/small/experiences", params={"limit": 1000})).json()["items"]
    told = [laned["rollout"] for laned in whole["rollouts"]]
    assert {rollout["id"] for rollout in told if rollout["id"]} == {row["id"] for row in rows}
    assert [rollout["code"] for rollout in told if rollout["state"] == "failed"] == ["RFTD-WRK-003"]
    assert not whole["sampled"]
    assert [(span["first_step"], span["last_step"]) for span in whole["steps"]] == [(n, n) for n in range(1, 6)]
    assert {"published", "checkpoint", "worker_lost", "completed"} <= {mark["change"] for mark in whole["marks"]}
    assert [worker["role"] for worker in whole["workers"]] == ["explorer", "explorer", "trainer"]


async def test_rollouts_of_one_lane_do_not_overlap(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    run = SyntheticRun(Recorder(seed=4), name="slow", steps=3, duration_s=0.05).write()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    whole = await read(client, "slow")
    lanes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for laned in whole["rollouts"]:
        rollout = laned["rollout"]
        span = time_ns_of(rollout["begun_at"]), time_ns_of(rollout["ended_at"])
        lanes.setdefault((rollout["worker"], laned["lane"]), []).append(span)
    assert max(lane for _, lane in lanes) > 2, "rollouts of 50 ms that end every 10 ms"
    for spans in lanes.values():
        assert not any(a[0] < b[1] and b[0] < a[1] for a, b in combinations(spans, 2))
    busy_s = sum(sum(worker["busy"]) for worker in whole["workers"]) * whole["bucket_s"]
    produced = [laned for laned in whole["rollouts"] if laned["rollout"]["id"]]
    assert busy_s == pytest.approx(0.05 * len(produced), rel=0.2)


async def test_a_span_between_two_moments_has_what_lies_inside(client: httpx.AsyncClient) -> None:
    whole = await read(client)
    third = whole["steps"][2]
    inside = await read(client, **{"from": third["begun_at"], "to": third["ended_at"]})
    assert 3 in {span["first_step"] for span in inside["steps"]}
    assert len(inside["rollouts"]) < len(whole["rollouts"])
    assert len(inside["workers"][0]["busy"]) <= 200
    for query, field in (({"from": "soon"}, "from"), ({"from": third["ended_at"], "to": third["begun_at"]}, "to")):
        answer = await client.get("/v1/experiments/small/timeline", params=query)
        assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_too_many_rollouts_are_sampled_and_steps_merged(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = await read(client, points=8)
    monkeypatch.setattr(queries, "MOST_ROLLOUTS", 3)
    sampled = await read(client, points=8)
    assert (sampled["sampled"], sampled["rollouts"]) == (True, [])
    assert [worker["id"] for worker in sampled["workers"]] == [worker["id"] for worker in exact["workers"]]
    merged = (await read(client, points=2))["steps"]
    assert [(span["first_step"], span["last_step"]) for span in merged] == [(1, 3), (4, 5)]
    assert all(0 <= span["busy"] <= 1 for span in merged)


async def test_a_sample_estimates_the_rollouts_under_way(
    parts: DaemonParts, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SyntheticRun(Recorder(seed=4), name="slow", steps=30, duration_s=0.05, faults=False).write()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    exact = await read(client, "slow", points=4)
    monkeypatch.setattr(queries, "MOST_ROLLOUTS", 3)
    sampled = await read(client, "slow", points=4)
    sums = [[sum(worker["busy"]) for worker in answer["workers"]] for answer in (exact, sampled)]
    assert sum(sums[1]) == pytest.approx(sum(sums[0]), rel=0.35)


async def test_idle_spans_are_named_by_their_hold(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    recorder = Recorder(seed=6)
    run = SyntheticRun(recorder, name="idle", seed=6, faults=False, spec=spec_of("idle", 3))
    run.begin()
    run.warm_up()
    run.explore()
    run.explore()
    run.train()
    recorder.clock.advance(50)
    recorder.write(ExperimentPaused(reason="lunch"), run.id, role="controller")
    recorder.clock.advance(100)
    recorder.write(ExperimentResumed(), run.id, role="controller")
    recorder.clock.advance(30)
    run.explore()
    run.explore()
    run.plan(stage=1, take=8)
    recorder.clock.advance(20)
    run.complete(stage=1, items=8)
    run.finish()
    await parts.log.append(recorder.drafts)
    await parts.projector.catch_up()
    spans = (await read(client, "idle"))["idle"]
    lengths = [
        (span["hold"], round((time_ns_of(span["ended_at"]) - time_ns_of(span["begun_at"])) / 1e9))
        for span in spans
        if span["step"] == 4 and time_ns_of(span["ended_at"]) - time_ns_of(span["begun_at"]) > 2e9
    ]
    assert lengths == [("experiences", 50), ("paused", 100), ("experiences", 30), ("prepares", 20)]
    assert next(span["text"] for span in spans if span["hold"] == "paused") == "lunch"
