"""What is not answered is refused with an OpenAI error object, and never with a traceback."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, asking, running_endpoint, user

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.generation.model import CallBounds
from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio
MESSAGES = [user("a")]
NAMED = {"type": "function", "function": {"name": "mul"}}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which is complete."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in response.text
    return error


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": MESSAGES, "colour": 1}, "colour", "unknown_parameter"),
        (
            {"messages": MESSAGES, "response_format": {"type": "json_object"}},
            "response_format",
            "unsupported_parameter",
        ),
        ({"messages": MESSAGES, "frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
        ({"messages": MESSAGES, "temperature": "hot"}, "temperature", None),
        ({"messages": MESSAGES, "temperature": -1}, "temperature", None),
        ({"messages": MESSAGES, "top_p": 0}, "top_p", None),
        ({"messages": MESSAGES, "n": 0}, "n", None),
        ({"messages": MESSAGES, "n": 1000}, "n", None),
        ({"messages": MESSAGES, "max_tokens": 0}, "max_completion_tokens", None),
        ({"messages": MESSAGES, "logit_bias": {"x": 1}}, "logit_bias", None),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice", None),
        ({"messages": MESSAGES, "tool_choice": NAMED}, "tool_choice", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "unsupported_parameter",
        ),
        ({}, None, None),
        ([], None, None),
    ],
    ids=str,
)
async def test_a_request_that_cannot_be_answered_says_which_parameter(
    body: Any, param: str | None, code: str | None
) -> None:
    engine = ScriptedEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        response = await asker.post("/chat/completions", body)
        assert response.status_code == 400
        error = error_of(response)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert not engine.requests


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"messages": ' + b"[" * 5000])
async def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        response = await asker.client.post("/chat/completions", content=body)
        assert response.status_code == 400
        error_of(response)


async def test_a_body_of_ten_megabytes_is_refused_whoever_sends_it() -> None:
    body = msgspec.json.encode({"messages": [user("x" * 10_000_000)]})
    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        mine = await asker.client.post("/chat/completions", content=body)
        stranger = await asker.client.post("/chat/completions", content=body, headers={"Authorization": "Bearer x"})
        assert (mine.status_code, stranger.status_code) == (413, 401)
        assert str(limits.ENDPOINT_BODY_SIZE_BYTES) in error_of(mine)["message"]
        error_of(stranger)
        large = await asker.post("/chat/completions", {"messages": [user("x" * 1_000_000)]})
        assert error_of(large)["code"] == "context_length_exceeded"
        await asker.chat(user("a"))


async def test_an_unknown_path_or_method_is_refused() -> None:
    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        for method, path in (("GET", "/chat/completions"), ("POST", "/embeddings"), ("DELETE", "/models")):
            response = await asker.client.request(method, path)
            assert response.status_code == 404
            assert error_of(response)["code"] == "unknown_url"


async def test_a_key_opens_its_own_rollout_while_that_lasts_and_no_other() -> None:
    mine = ScriptedEngine(["mine"])
    yours = ScriptedEngine(["yours"])
    stranger = httpx.AsyncClient(trust_env=False, verify=False)
    async with running_endpoint() as endpoint, stranger, asking(endpoint, mine, rollout=1) as first:
        async with asking(endpoint, yours, rollout=2) as second:
            assert first.served.api_key != second.served.api_key
            await second.chat(user("a"))
            await first.chat(user("a"))
            assert [turn.text for turn in first.served.turns] == ["mine"]
            assert [turn.text for turn in second.served.turns] == ["yours"]
        url = f"{endpoint.base_url}/chat/completions"
        body = {"messages": MESSAGES}
        for key in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {first.served.api_key}",
            f"Bearer {second.served.api_key}",
        ):
            response = await stranger.post(url, json=body, headers={"Authorization": key})
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
        await first.chat(user("b"))
    assert len(mine.requests) == 2
    assert len(yours.requests) == 1


async def test_a_key_is_nowhere_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            raise ZeroDivisionError

    async with running_endpoint() as endpoint, asking(endpoint, Broken()) as asker:
        response = await asker.post("/chat/completions", {"messages": MESSAGES})
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
        key = asker.served.api_key
        shown = capsys.readouterr()
        assert key not in shown.out + shown.err + repr(vars(asker.served)) + repr(vars(endpoint))


async def test_an_engine_that_fails_is_a_server_error_with_its_reason() -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            raise RolloutError("the engine is closed")

    async with running_endpoint() as endpoint, asking(endpoint, Failing()) as asker:
        response = await asker.post("/chat/completions", {"messages": MESSAGES, "n": 2})
        assert response.status_code == 500
        assert error_of(response)["message"] == "the engine is closed"
        assert asker.served.failure is not None


async def test_a_prompt_that_does_not_fit_is_refused() -> None:
    engine = ScriptedEngine()
    spec = msgspec.structs.replace(SPEC, max_prompt_tokens=5)
    async with running_endpoint() as endpoint:
        for each in (spec, msgspec.structs.replace(spec, enable_prompt_truncation=False)):
            async with asking(endpoint, engine, spec=each) as asker:
                response = await asker.post("/chat/completions", {"messages": MESSAGES})
                assert response.status_code == 400
                assert error_of(response)["code"] == "context_length_exceeded"
    assert not engine.requests


async def test_calls_tokens_and_concurrency_of_a_rollout_are_bounded() -> None:
    async with running_endpoint() as endpoint:
        async with asking(endpoint, ScriptedEngine(), bounds=CallBounds(calls=3)) as asker:
            await asker.chat(user("a"), n=2)
            assert error_of(await asker.post("/chat/completions", {"messages": MESSAGES, "n": 2}))["param"] is None
            await asker.chat(user("b"))
            refused = await asker.post("/chat/completions", {"messages": MESSAGES})
            assert refused.status_code == 403
            assert error_of(refused)["code"] == "rollout_bound_reached"
        engine = ScriptedEngine(["0123456789"])
        async with asking(endpoint, engine, bounds=CallBounds(tokens=16)) as asker:
            await asker.chat(user("a"))
            answer = await asker.chat(user("b"))
            assert answer["choices"][0]["finish_reason"] == "length"
            refused = await asker.post("/chat/completions", {"messages": [user("c")]})
            assert error_of(refused)["code"] == "rollout_bound_reached"
            assert sum(len(each.tokens) for each in engine.drawn) == 16


async def test_a_flood_is_held_off_and_nothing_of_it_is_lost() -> None:
    engine = ScriptedEngine(hold=True)
    async with running_endpoint() as endpoint, asking(endpoint, engine, bounds=CallBounds(concurrent=8)) as asker:
        async with asyncio.TaskGroup() as calls:
            bodies = [{"messages": [user(str(number))]} for number in range(200)]
            asked = [calls.create_task(asker.post("/chat/completions", body)) for body in bodies]
            while sum(task.done() for task in asked) < 192:
                await asyncio.wait([task for task in asked if not task.done()], return_when=asyncio.FIRST_COMPLETED)
            engine.go.set()
        responses = [task.result() for task in asked]
        refused = [each for each in responses if each.status_code != 200]
        assert len(refused) == 192
        assert {each.status_code for each in refused} == {429}
        assert {each.headers["retry-after"] for each in refused} == {"1"}
        assert {error_of(each)["code"] for each in refused} == {"rate_limit_exceeded"}
        assert len(asker.served.results(RewardResult(value=0.0))) == 8
