"""Chat completions: what a client is told, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from synthetic.models.scripted_engine import ScriptedEngine, asking, message_of, running_endpoint, user

from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.byte_tokenizer import EOS
from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio

ONE = RewardResult(value=1.0)
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


async def test_an_answer_is_a_chat_completion_and_is_recorded_as_it_was_drawn() -> None:
    engine = ScriptedEngine(["four"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        answer = await asker.chat(user("2+2?"), logprobs=True)
        assert answer["object"] == "chat.completion"
        assert message_of(answer) == {"role": "assistant", "content": "four"}
        assert answer["choices"][0]["finish_reason"] == "stop"
        prompt = len(engine.requests[0].prompt)
        assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
        told = answer["choices"][0]["logprobs"]["content"]
        assert [each["logprob"] for each in told] == list(engine.drawn[0].logprobs)
        assert [each["token"] for each in told] == ["f", "o", "u", "r", ""]
        (result,) = asker.served.results(ONE)
    assert tuple(result.tokens) == (*ids("user: 2+2?\nassistant: four"), EOS)
    assert result.prompt_tokens == prompt
    assert result.loss_mask.tolist() == [1] * 5
    assert result.logprobs.tolist() == pytest.approx(engine.drawn[0].logprobs)
    assert result.spans == engine.drawn[0].spans
    result.check(4096)


async def test_a_turn_goes_on_from_the_ids_that_were_drawn_and_not_from_their_text() -> None:
    """The reply is drawn as ids that its text would not be encoded as."""
    engine = ScriptedEngine(["one", "two"], encode=lambda text: [300, *text.encode()])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        first = await asker.chat(user("a"))
        assert message_of(first)["content"] == "one"
        # As SDKs send it back, with fields of their own and content in parts.
        echoed = {"role": "assistant", "content": [{"type": "text", "text": "one"}], "refusal": None, "annotations": []}
        await asker.chat(user("a"), echoed, user("b"))
        (result,) = asker.served.results(ONE)
    told = ids("\nuser: b\nassistant: ")
    drawn = [each.tokens for each in engine.drawn]
    assert engine.requests[1].prompt == engine.requests[0].prompt + drawn[0] + told
    assert tuple(result.tokens) == engine.requests[1].prompt + drawn[1]
    assert result.loss_mask.tolist() == [1] * len(drawn[0]) + [0] * len(told) + [1] * len(drawn[1])


async def test_what_branches_or_rewrites_history_is_a_step_of_its_own() -> None:
    engine = ScriptedEngine(["one", "two", "three", "four"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        first = message_of(await asker.chat(user("a")))
        await asker.chat(user("a"), first, user("b"))
        await asker.chat(user("a"), first, user("c"))  # branches
        await asker.chat(user("a"), {**first, "content": "uno"}, user("b"))  # rewrites
        results = asker.served.results(ONE)
    drawn = [each.tokens for each in engine.drawn]
    assert engine.requests[2].prompt[: len(ids("user: a\nassistant: ")) + 4] == engine.requests[0].prompt + drawn[0]
    trained = [tuple(each.tokens[each.prompt_tokens :][each.loss_mask == 1]) for each in results]
    assert trained == [drawn[0] + drawn[1], drawn[2], drawn[3]]
    assert bytes(results[2].tokens[: results[2].prompt_tokens].tolist()).decode().startswith("user: a\nassistant: uno")
    assert [each.reward for each in results] == [1.0, 1.0, 1.0]


async def test_each_of_several_choices_is_recorded_and_any_of_them_can_be_gone_on_from() -> None:
    engine = ScriptedEngine(["one", "two", "three", "end"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        answer = await asker.chat(user("a"), n=3)
        assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
        assert answer["usage"]["completion_tokens"] == sum(len(each.tokens) for each in engine.drawn)
        await asker.chat(user("a"), message_of(answer, 1), user("go on"))
        results = asker.served.results(ONE)
    assert [result.text for result in results] == ["one", "three", "end"]
    assert len({request.sampling.seed for request in engine.requests}) == 4
    assert engine.requests[3].prompt[: len(engine.requests[0].prompt) + 4] == (
        *engine.requests[0].prompt,
        *ids("two"),
        EOS,
    )


@pytest.mark.parametrize("more", [{}, {"tools": [ADD]}, {"n": 2, "logprobs": True}])
async def test_a_stream_says_what_the_whole_answer_says(more: dict[str, Any]) -> None:
    engine = ScriptedEngine([f"I add. {CALL}"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        whole = await asker.chat(user("1+2?"), **more)
        body = {"messages": [user("1+2?")], "stream": True, "stream_options": {"include_usage": True}, **more}
        response = await asker.post("/chat/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(each.removeprefix("data: ")) for each in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for wanted in whole["choices"]:
        mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == wanted["index"]]
        content = "".join(each["delta"].get("content") or "" for each in mine)
        assert content == (wanted["message"]["content"] or "")
        calls = [call for each in mine for call in each["delta"].get("tool_calls", [])]
        asked = [call["function"] for call in wanted["message"].get("tool_calls", [])]
        assert [call["function"] for call in calls] == asked
        assert [each["finish_reason"] for each in mine if each["finish_reason"]] == [wanted["finish_reason"]]
        assert len([each for each in mine if each["logprobs"]]) == ("logprobs" in more)


async def test_a_tool_is_called_and_its_result_goes_on_from_the_ids_of_the_call() -> None:
    engine = ScriptedEngine([CALL, "3"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        first = await asker.chat(user("1+2?"), tools=[ADD])
        message = message_of(first)
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        assert message["content"] is None
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
        # A client may write the arguments anew, and name the call as it likes.
        function = {"name": "add", "arguments": '{"a":1, "b":2}'}
        again = {"role": "assistant", "tool_calls": [{"id": "mine", "type": "function", "function": function}]}
        result = {"role": "tool", "tool_call_id": "mine", "content": "3"}
        await asker.chat(user("1+2?"), again, result, tools=[ADD])
        (trained,) = asker.served.results(ONE)
    assert engine.requests[1].prompt[: len(engine.requests[0].prompt)] == engine.requests[0].prompt
    assert tuple(trained.tokens[trained.prompt_tokens :][trained.loss_mask == 1]) == (*ids(CALL), EOS, *ids("3"), EOS)
    assert b"tools: [" in bytes(engine.requests[0].prompt)


@pytest.mark.parametrize(
    ("choice", "beginning"),
    [
        ("required", '<tool_call>\n{"name": "add", "arguments": '),
        ({"type": "function", "function": {"name": "add"}}, '<tool_call>\n{"name": "add", "arguments": '),
        ("auto", ""),
        (None, ""),
    ],
)
async def test_a_tool_can_be_demanded(choice: object, beginning: str) -> None:
    """The call is begun for the model, as part of the prompt that is not trained."""
    engine = ScriptedEngine([CALL.removeprefix(beginning)])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        answer = await asker.chat(user("1+2?"), tools=[ADD], tool_choice=choice)
        (result,) = asker.served.results(ONE)
    assert message_of(answer)["tool_calls"][0]["function"]["name"] == "add"
    assert bytes(engine.requests[0].prompt).decode().endswith(f"assistant: {beginning}")
    assert result.loss_mask.tolist() == [1] * len(engine.drawn[0].tokens)


async def test_no_tool_is_found_where_none_may_be_called_or_the_call_is_malformed() -> None:
    engine = ScriptedEngine([CALL, CALL, "<tool_call>\n{oops}\n</tool_call>"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        none = await asker.chat(user("a"), tools=[ADD], tool_choice="none")
        without = await asker.chat(user("b"))
        malformed = await asker.chat(user("c"), tools=[ADD])
    assert [message_of(each)["content"] for each in (none, without, malformed)] == list(engine.replies)
    assert [each["choices"][0]["finish_reason"] for each in (none, without, malformed)] == ["stop"] * 3


async def test_a_stop_text_is_drawn_and_trained_and_not_shown() -> None:
    engine = ScriptedEngine(["one END"], eos=ord("!"))
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        answer = await asker.chat(user("a"), stop="END")
        assert message_of(answer)["content"] == "one "
        assert answer["choices"][0]["finish_reason"] == "stop"
        await asker.chat(user("a"), message_of(answer), user("b"), stop=["END"])
        assert len(asker.served.results(ONE)) == 1
    assert engine.requests[0].sampling.stop == ("END",)


async def test_a_call_is_drawn_as_it_says_or_as_the_experiment_says() -> None:
    base = SamplingSpec(max_tokens=400, temperature=0.7, top_p=0.9)
    engine = ScriptedEngine(["a long answer"])
    async with running_endpoint() as endpoint:
        async with asking(endpoint, engine, sampling=base) as asker:
            await asker.chat(user("a"))
            answer = await asker.chat(user("a"), temperature=0.2, top_k=5, max_completion_tokens=3, logit_bias={"7": 1})
            assert answer["choices"][0]["finish_reason"] == "length"
        async with asking(endpoint, engine, sampling=base, lengths_only=True) as asker:
            await asker.chat(user("a"), temperature=0.2, top_k=5, max_tokens=3, stop="x")
    said = [(each.sampling.temperature, each.sampling.top_p, each.sampling.top_k) for each in engine.requests]
    assert said == [(0.7, 0.9, -1), (0.2, 0.9, 5), (0.7, 0.9, -1)]
    assert [each.sampling.max_tokens for each in engine.requests] == [400, 3, 3]
    assert [each.sampling.logit_bias for each in engine.requests] == [(), ((7, 1.0),), ()]
    assert engine.requests[2].sampling.stop == ("x",)


async def test_the_models_are_one_of_any_name() -> None:
    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        listed = (await asker.client.get("/models")).json()
        assert [each["id"] for each in listed["data"]] == ["tiny"]
        assert (await asker.client.get("/models/gpt-4o")).json()["id"] == "gpt-4o"
        assert (await asker.chat(user("a"), model="gpt-4o"))["model"] == "gpt-4o"


async def test_completions_go_on_from_text_and_from_ids() -> None:
    engine = ScriptedEngine(["b", "d"])
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        first = (await asker.post("/completions", {"prompt": "a", "logprobs": 0})).json()
        assert first["object"] == "text_completion"
        assert first["choices"][0]["text"] == "b"
        assert first["choices"][0]["logprobs"]["tokens"] == ["b", ""]
        more = [*engine.requests[0].prompt, *engine.drawn[0].tokens, ord("c")]
        streamed = await asker.post("/completions", {"prompt": more, "stream": True, "max_tokens": 5})
        assert json.loads(streamed.text.split("\n\n")[0].removeprefix("data: "))["choices"][0]["text"] == "d"
        (result,) = asker.served.results(ONE)
    assert tuple(result.tokens) == (*ids("ab"), EOS, *ids("cd"), EOS)
    assert result.loss_mask.tolist() == [1, 1, 0, 1, 1]


async def test_a_thousand_calls_at_once_are_answered_each_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rollouts with fifty calls each; every id that would be trained was drawn, for that prompt, once."""
    engine = ScriptedEngine([str(number) for number in range(10)], hold=True)
    async with running_endpoint() as endpoint, asyncio.TaskGroup() as programs:

        async def program(rollout: int) -> None:
            async with asking(endpoint, engine, rollout=rollout) as asker, asyncio.TaskGroup() as calls:
                asked = [calls.create_task(asker.chat(user(f"{rollout}/{number}"))) for number in range(50)]
                await asyncio.wait(asked)
                results = asker.served.results(ONE)
                drawn = {
                    request.prompt: each.tokens for request, each in zip(engine.requests, engine.drawn, strict=True)
                }
                for result in results:
                    prompt = tuple(result.tokens[: result.prompt_tokens])
                    assert drawn[prompt] == tuple(result.tokens[result.prompt_tokens :])
                assert len(results) == 50

        for rollout in range(20):
            programs.create_task(program(rollout))
        await engine.until(lambda held: held.running == 1000)
        engine.go.set()
    assert len({request.prompt for request in engine.requests}) == 1000
