"""Calls that are repeated, joined, given up or cut off: each drawn token is trained once, and no slot stays taken."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from synthetic.models.scripted_engine import Asker, ScriptedEngine, asking, client_of, running_endpoint, user

from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"messages": [user("a")]}
CHAT = "/chat/completions"


def steps(asker: Asker) -> int:
    return len(asker.served.results(RewardResult(value=0.0)))


async def test_an_idempotency_key_makes_one_call_of_many_requests() -> None:
    engine = ScriptedEngine(["one", "two"], hold=True)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with asyncio.TaskGroup() as calls:
            key = {"Idempotency-Key": "k"}
            asked = [calls.create_task(asker.client.post(CHAT, json=BODY, headers=key)) for _ in range(5)]
            await engine.until(lambda held: held.running == 1)
            engine.go.set()
        later = await asker.client.post(CHAT, json=BODY, headers=key)
        assert {task.result().text for task in asked} == {later.text}
        other = await asker.client.post(CHAT, json={"messages": [user("b")]}, headers=key)
        assert other.status_code == 422
        assert other.json()["error"]["code"] == "idempotency_key_reused"
        assert steps(asker) == len(engine.requests) == 1
        assert (await asker.client.post(CHAT, json=BODY, headers={"Idempotency-Key": "l"})).text != later.text
        assert steps(asker) == 2


async def test_the_bodies_of_calls_that_are_over_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENDPOINT_KEPT_SIZE_BYTES", 3000)
    engine = ScriptedEngine(["one"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        for number in range(10):
            body = {"messages": [user(f"{number}" * 1000)]}
            headers = {"Idempotency-Key": str(number)}
            assert (await asker.client.post(CHAT, json=body, headers=headers)).status_code == 200
        # The newest is told again; the oldest is drawn anew.
        assert (await asker.client.post(CHAT, json=body, headers=headers)).status_code == 200
        assert len(engine.requests) == 10
        body = {"messages": [user("0" * 1000)]}
        assert (await asker.client.post(CHAT, json=body, headers={"Idempotency-Key": "0"})).status_code == 200
        assert len(engine.requests) == 11


async def test_the_same_body_at_the_same_time_is_one_call_and_later_another() -> None:
    engine = ScriptedEngine(["one", "two"], hold=True)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with asyncio.TaskGroup() as calls:
            asked = [calls.create_task(asker.post(CHAT, BODY)) for _ in range(5)]
            await engine.until(lambda held: held.running == 1)
            # Not before all five are there: each of them has a connection of its own.
            other = calls.create_task(asker.post(CHAT, {"messages": [user("b")]}))
            await engine.until(lambda held: held.running == 2)
            engine.go.set()
        assert len({task.result().text for task in asked}) == 1
        assert other.result().json()["choices"][0]["message"]["content"] == "two"
        assert steps(asker) == 2
        again = await asker.post(CHAT, BODY)
        assert again.text != asked[0].result().text
        assert steps(asker) == 3


async def test_a_client_that_says_it_repeats_a_call_gets_the_answer_that_it_missed() -> None:
    engine = ScriptedEngine(["one", "two"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        first = await asker.client.post(CHAT, json=BODY, headers={"x-stainless-retry-count": "0"})
        again = await asker.client.post(CHAT, json=BODY, headers={"x-stainless-retry-count": "1"})
        assert again.text == first.text
        assert steps(asker) == len(engine.requests) == 1


async def test_a_client_that_hangs_up_frees_the_slot_and_leaves_nothing_to_train() -> None:
    engine = ScriptedEngine(hold=True)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker, client_of(asker.served) as other:
        asked = [asyncio.ensure_future(each.post(CHAT, json=BODY)) for each in (asker.client, other)]
        asked.append(asyncio.ensure_future(other.post(CHAT, json={**BODY, "n": 2, "stream": True})))
        await engine.until(lambda held: held.running == 3)
        asked[2].cancel()
        await engine.until(lambda held: held.running == 1)
        asked[1].cancel()
        engine.go.set()
        assert (await asked[0]).status_code == 200
        assert steps(asker) == 1
        engine.go.clear()
        alone = asyncio.ensure_future(asker.post(CHAT, {"messages": [user("b")]}))
        await engine.until(lambda held: held.running == 1)
        alone.cancel()
        await engine.until(lambda held: held.running == 0)
        assert steps(asker) == 1
        engine.go.set()
        assert (await asker.post(CHAT, {"messages": [user("b")]})).status_code == 200
        assert steps(asker) == 2


async def test_a_rollout_that_ends_ends_its_calls() -> None:
    engine = ScriptedEngine(hold=True)
    async with running_endpoint() as endpoint:
        async with asking(endpoint, engine) as asker:
            outliving = client_of(asker.served)
            call = asyncio.ensure_future(outliving.post(CHAT, json=BODY))
            await engine.until(lambda held: held.running == 1)
        assert engine.running == 0
        response = await call
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert steps(asker) == 0
        await outliving.aclose()


async def test_a_call_that_is_under_way_when_the_endpoint_ends_is_answered() -> None:
    engine = ScriptedEngine(hold=True)
    endpoint = ModelEndpoint(clock=SystemClock(), random_bytes=os.urandom)
    serving = asyncio.ensure_future(endpoint.run())
    async with asking(endpoint, engine) as asker:
        call = asyncio.ensure_future(asker.post(CHAT, BODY))
        await engine.until(lambda held: held.running == 1)
        serving.cancel()
        engine.go.set()
        response = await call
        assert response.status_code == 200, response.text
        assert steps(asker) == 1
    await asyncio.wait([serving])
    assert serving.cancelled()
