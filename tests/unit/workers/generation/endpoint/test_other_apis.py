"""The responses API and Anthropic's: the same conversation, in other words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from synthetic.models.scripted_engine import Asker, ScriptedEngine, asking, message_of, running_endpoint, user

from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio

CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "number"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "add", "description": "a + b", "parameters": SCHEMA, "strict": True}
ANTHROPIC_TOOL = {"name": "add", "description": "a + b", "input_schema": SCHEMA}


async def chat_prompts() -> list[tuple[int, ...]]:
    """What the chat API asks the engine with, for the conversation of this page."""
    engine = ScriptedEngine([CALL, "3"])
    system = {"role": "system", "content": "Add."}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        message = message_of(await asker.chat(system, user("1+2?"), tools=[CHAT_TOOL]))
        told = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
        await asker.chat(system, user("1+2?"), message, told, tools=[CHAT_TOOL])
    return [request.prompt for request in engine.requests]


def trained(asker: Asker, engine: ScriptedEngine) -> None:
    """Fails unless the one sequence is trained on all that was drawn, in order."""
    (result,) = asker.served.results(RewardResult(value=1.0))
    drawn = [token for generation in engine.drawn for token in generation.tokens]
    assert result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist() == drawn


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


@pytest.mark.parametrize("stream", [False, True])
async def test_the_responses_api_asks_what_the_chat_api_asks(stream: bool) -> None:
    engine = ScriptedEngine([CALL, "3"])
    asked: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "input_text", "text": "1+2?"}]}]
    fixed = {"model": "m", "instructions": "Add.", "tools": [RESPONSES_TOOL], "stream": stream, "store": False}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        for wanted in ("function_call", "message"):
            response = await asker.post("/responses", {**fixed, "input": asked})
            if stream:
                events = events_of(response)
                assert [event["sequence_number"] for event in events] == list(range(len(events)))
                assert events[0]["type"] == "response.created"
                assert events[-1]["type"] == "response.completed"
                answer = events[-1]["response"]
                done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
                assert done == answer["output"]
            else:
                answer = response.json()
            assert (answer["object"], answer["status"]) == ("response", "completed")
            assert answer["usage"]["output_tokens"] == len(engine.drawn[-1].tokens)
            assert answer["output"][-1]["type"] == wanted
            asked += answer["output"]
            if wanted == "function_call":
                call = answer["output"][-1]
                assert json.loads(call["arguments"]) == {"a": 1, "b": 2}
                asked.append({"type": "function_call_output", "call_id": call["call_id"], "output": "3"})
        assert asked[-1]["content"][0]["text"] == "3"
        trained(asker, engine)
    assert [request.prompt for request in engine.requests] == await chat_prompts()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_api_of_anthropic_asks_what_the_chat_api_asks(stream: bool) -> None:
    engine = ScriptedEngine([CALL, "3"])
    messages: list[dict[str, Any]] = [user("1+2?")]
    fixed = {"model": "m", "max_tokens": 400, "system": "Add.", "tools": [ANTHROPIC_TOOL], "stream": stream}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        key = asker.served.api_key
        asker.client.headers = httpx.Headers({"x-api-key": key})
        for wanted in ("tool_use", "end_turn"):
            response = await asker.post("/messages", {**fixed, "messages": messages})
            content: list[dict[str, Any]] = []
            if stream:
                for event in events_of(response):
                    if event["type"] == "content_block_start":
                        content.append(event["content_block"])
                    delta = event.get("delta", {})
                    if delta.get("type") == "text_delta":
                        content[-1]["text"] += delta["text"]
                    if delta.get("type") == "input_json_delta":
                        content[-1]["input"] = json.loads(delta["partial_json"])
                    if event["type"] == "message_delta":
                        assert delta["stop_reason"] == wanted
            else:
                answer = response.json()
                assert (answer["type"], answer["stop_reason"]) == ("message", wanted)
                assert answer["usage"]["output_tokens"] == len(engine.drawn[-1].tokens)
                content = answer["content"]
            messages.append({"role": "assistant", "content": content})
            if wanted == "tool_use":
                assert content[-1]["input"] == {"a": 1, "b": 2}
                told = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "3"}
                messages.append({"role": "user", "content": [told]})
        assert content == [{"type": "text", "text": "3"}]
        trained(asker, engine)
    assert [request.prompt for request in engine.requests] == await chat_prompts()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/responses", {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("/responses", {"input": "a", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ("/responses", {"input": [{"type": "image", "role": "user"}]}, "input[0].type"),
        ("/responses", {"input": []}, "input"),
        ("/responses", {"input": "a", "tool_choice": "required"}, "tool_choice"),
        ("/responses", {"input": "a", "colour": 1}, "colour"),
        ("/messages", {"messages": [user("a")]}, None),
        ("/messages", {"messages": [], "max_tokens": 5}, "messages"),
        ("/messages", {"messages": [user("a")], "max_tokens": 0}, "max_tokens"),
        ("/messages", {"messages": [{"role": "x", "content": "a"}], "max_tokens": 5}, "messages[0].role"),
        ("/messages", {"messages": [user("a")], "max_tokens": 5, "tool_choice": {"type": "any"}}, "tool_choice"),
    ],
    ids=str,
)
async def test_what_they_cannot_have_is_refused(path: str, body: dict[str, Any], param: str | None) -> None:
    engine = ScriptedEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        response = await asker.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not engine.requests


async def test_a_demanded_tool_and_a_stop_are_told_in_the_words_of_each() -> None:
    engine = ScriptedEngine(['{"a": 1, "b": 2}}\n</tool_call>', "a long END", "a long answer"], eos=ord("!"))
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        demanded = {"input": "1+2?", "tools": [RESPONSES_TOOL], "tool_choice": "required"}
        answer = (await asker.post("/responses", demanded)).json()
        assert [item["type"] for item in answer["output"]] == ["function_call"]
        stopped = {"messages": [user("a")], "max_tokens": 50, "stop_sequences": ["END"]}
        answer = (await asker.post("/messages", stopped)).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
        assert answer["content"][0]["text"] == "a long "
        answer = (await asker.post("/responses", {"input": "b", "max_output_tokens": 3})).json()
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
