"""An answer is held to a JSON schema where the engine can, in the words of each API, and refused by name elsewhere."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, asking, message_of, running_endpoint, user

from rftd.ops.errors import RolloutError
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
ANY: dict[str, Any] = {"type": "object"}
CHAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
RESPONSES = {"type": "json_schema", "name": "sum", "schema": SCHEMA}


class HoldingEngine(ScriptedEngine):
    """Can hold answers, of which its script has to take care; reads no schema of an array."""

    holds_schemas = True

    async def generate(self, request: GenerationRequest) -> Generation:
        if "array" in request.sampling.json_schema:
            raise RolloutError("the engine cannot hold a response to this schema", field="json_schema")
        return await super().generate(request)


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("/chat/completions", {"messages": [user("a?")], "response_format": CHAT}, SCHEMA),
        (
            "/chat/completions",
            {"messages": [user("a?")], "response_format": {"type": "json_object"}},
            {"type": "object"},
        ),
        ("/chat/completions", {"messages": [user("a?")], "response_format": {"type": "text"}}, None),
        (
            "/chat/completions",
            {"messages": [user("a?")], "response_format": CHAT, "tools": [TOOL], "tool_choice": "none"},
            SCHEMA,
        ),
        ("/responses", {"input": "a?", "text": {"format": RESPONSES}}, SCHEMA),
        ("/responses", {"input": "a?", "text": {"format": {"type": "json_object"}}}, ANY),
    ],
    ids=["schema", "object", "text", "tools", "responses", "responses_object"],
)
async def test_the_schema_of_a_call_reaches_the_engine_and_the_record(
    path: str, body: dict[str, Any], schema: dict[str, Any] | None
) -> None:
    engine = HoldingEngine(['{"a": 1}'])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        response = await asker.post(path, body)
        assert response.status_code == 200, response.text
        (result,) = asker.served.results(RewardResult(value=1.0))
    (request,) = engine.requests
    assert (json.loads(request.sampling.json_schema) if schema else request.sampling.json_schema or None) == schema
    assert [name for span in result.sampling for name, _ in span.others] == (["json_schema"] if schema else [])
    if path == "/responses":
        assert response.json()["text"]["format"]["type"] == body["text"]["format"]["type"]
    else:
        assert message_of(response.json())["content"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/chat/completions", {"messages": [user("a")], "response_format": {"type": "json_schema"}}, "response_format"),
        ("/chat/completions", {"messages": [user("a")], "response_format": {"type": "xml"}}, "response_format"),
        ("/chat/completions", {"messages": [user("a")], "response_format": CHAT, "tools": [TOOL]}, "response_format"),
        ("/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("/responses", {"input": "a", "text": {"format": {"type": "grammar"}}}, "text.format"),
    ],
    ids=["no_schema", "unknown", "tools", "responses_no_schema", "responses_unknown"],
)
async def test_a_form_that_no_answer_can_have_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    engine = HoldingEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        response = await asker.post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not engine.requests


async def test_an_engine_that_reads_another_kind_of_schema_answers_the_next_call() -> None:
    engine = HoldingEngine(['{"a": 1}'])
    listed = {"type": "json_schema", "name": "list", "schema": {"type": "array"}}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        response = await asker.post("/responses", {"input": "a?", "text": {"format": listed}})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "text.format")
        assert (await asker.post("/responses", {"input": "a?", "text": {"format": RESPONSES}})).status_code == 200


@pytest.mark.parametrize(
    ("spec", "sampling", "says"),
    [
        (msgspec.structs.replace(SPEC, reasoning_parser="deepseek_r1"), {}, "enable_thinking"),
        (SPEC, {"min_tokens": 2}, "minimum number of tokens"),
        (msgspec.structs.replace(SPEC, min_response_tokens=2), {}, "minimum number of tokens"),
        (SPEC, {"ignore_eos": True}, "ignore_eos"),
    ],
    ids=["thoughts", "min_tokens", "min_response_tokens", "ignore_eos"],
)
async def test_what_bans_the_end_of_a_held_answer_is_named(
    spec: ModelSpec, sampling: dict[str, Any], says: str
) -> None:
    engine = HoldingEngine()
    settings = SamplingSpec(max_tokens=400, **sampling)
    async with running_endpoint() as endpoint, asking(endpoint, engine, spec=spec, sampling=settings) as asker:
        response = await asker.post("/chat/completions", {"messages": [user("a")], "response_format": CHAT})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "unsupported_parameter")
    assert says in error["message"]
    assert not engine.requests
