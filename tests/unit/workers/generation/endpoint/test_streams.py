"""Answers that are streamed while they are drawn: what is shown when, and that the record is that of a whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from synthetic.models.scripted_engine import (
    Asker,
    ScriptedEngine,
    asking,
    client_of,
    message_of,
    running_endpoint,
    user,
)

from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.generation.endpoint.answer_form import HERMES
from rftd.workers.generation.endpoint.shown_text import ShownText
from rftd.workers.workflows.rewards.reward import RewardResult

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {"messages": [user("a")], "stream": True}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Told:
    """The events of a stream as a client reads them."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any] | None:
        """The next event; None after the last."""
        async for line in self._lines:
            if line == "data: [DONE]":
                return None
            if line:
                self.events.append(json.loads(line.removeprefix("data: ")))
                return self.events[-1]
        return None

    async def text(self) -> str:
        """The next text that is no empty one."""
        while event := await self.next():
            text = text_in([event])
            if text:
                return text
        return ""

    async def rest(self) -> list[dict[str, Any]]:
        while await self.next():
            pass
        return self.events


@asynccontextmanager
async def streaming(asker: Asker, body: dict[str, Any], path: str = "/chat/completions") -> AsyncIterator[Told]:
    async with asker.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        yield Told(response.aiter_lines())


def text_in(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event.get("choices", ()) if choice["index"] == index]
    return "".join(each["delta"].get("content") or "" if "delta" in each else each["text"] for each in choices)


def engine_of(*replies: str, steps: int = 0, **more: Any) -> tuple[ScriptedEngine, asyncio.Semaphore]:
    ready = asyncio.Semaphore(steps)
    return ScriptedEngine(replies, steps=ready, **more), ready


def release(steps: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        steps.release()


def trained(asker: Asker) -> list[list[int]]:
    results = asker.served.results(RewardResult(value=0.0))
    return [each.tokens[each.prompt_tokens :][each.loss_mask == 1].tolist() for each in results]


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_what_is_drawn_is_told_before_the_answer_is_complete(path: str) -> None:
    """The client gets whole characters, though the euro sign is drawn in three tokens."""
    engine, steps = engine_of("4 \u20ac!")
    body = {**CHAT, "logprobs": True} if path.startswith("/chat") else {"prompt": "a", "stream": True, "logprobs": 0}
    body["stream_options"] = {"include_usage": True}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        release(steps, 1)
        async with streaming(asker, body, path) as told:
            texts = [await told.text()]
            for count in (1, 3):
                release(steps, count)
                texts.append(await told.text())
            assert texts == ["4", " ", "\u20ac"]
            assert not engine.drawn
            assert not asker.served.turns
            release(steps, 2)
            events = await told.rest()
        assert text_in(events) == "4 \u20ac!"
        assert events[-1]["usage"]["completion_tokens"] == len(engine.drawn[0].tokens)
        assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
        assert trained(asker) == [list(engine.drawn[0].tokens)]
    told_of = [each["logprobs"] for event in events for each in event["choices"] if each["logprobs"]]
    if path.startswith("/chat"):
        logprobs = [token["logprob"] for each in told_of for token in each["content"]]
    else:
        logprobs = [logprob for each in told_of for logprob in each["token_logprobs"]]
        places = [place for each in told_of for place in each["text_offset"]]
        assert places == sorted(places)
    assert logprobs == list(engine.drawn[0].logprobs)


async def test_a_call_and_a_stop_text_are_held_back_until_they_are_certain() -> None:
    """The text that a client was shown is found again when it goes on from it."""
    engine, _ = engine_of(f"I <add> it. \n{CALL}", "3 EN END", steps=10_000)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with streaming(asker, {**CHAT, "tools": [ADD], "n": 1}) as told:
            events = await told.rest()
        assert text_in(events) == "I <add> it."
        deltas = [event["choices"][0]["delta"] for event in events]
        (call,) = [each for delta in deltas for each in delta.get("tool_calls", ())]
        assert call["function"] == {"name": "add", "arguments": '{"a":1}'}
        said = {"role": "assistant", "content": text_in(events), "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
        more = {"messages": [user("a"), said, result], "tools": [ADD], "stream": True, "stop": "END"}
        async with streaming(asker, more) as told:
            assert text_in(await told.rest()) == "3 EN "
        assert trained(asker) == [[token for each in engine.drawn for token in each.tokens]]


async def test_of_several_choices_each_is_told_and_who_comes_late_is_told_all() -> None:
    engine, steps = engine_of("one", "two")
    body = {**CHAT, "n": 2}
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker, client_of(asker.served) as other:
        release(steps, 4)
        async with streaming(asker, body) as first:
            await first.text()
            late = Asker(asker.served, other)
            async with streaming(late, body) as second:
                assert await second.text()
                release(steps, 100)
                events = [await told.rest() for told in (first, second)]
        for each in events:
            assert [text_in(each, index) for index in range(2)] == ["one", "two"]
        assert len(engine.requests) == 2
        assert len(trained(asker)) == 2


async def test_who_hangs_up_in_the_middle_cancels_the_answer_and_nothing_of_it_is_trained() -> None:
    engine, steps = engine_of("one")
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        release(steps, 1)
        async with streaming(asker, CHAT) as told:
            assert await told.text() == "o"
        await engine.until(lambda held: held.running == 0)
        assert not engine.drawn
        assert not trained(asker)
        release(steps, 100)
        again = await asker.chat(user("a"))
        assert message_of(again)["content"] == "one"
        assert len(trained(asker)) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_failed_answer_is_an_error_before_the_stream_and_its_last_event_after(begun: bool) -> None:
    engine, steps = engine_of("on\0")
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        if begun:
            release(steps, 1)
            async with streaming(asker, CHAT) as told:
                assert await told.text() == "o"
                release(steps, 100)
                error = (await told.rest())[-1]["error"]
        else:
            engine.steps = None
            response = await asker.post("/chat/completions", CHAT)
            assert response.status_code == 500
            error = response.json()["error"]
        assert error == {"message": "the engine is broken", "type": "server_error", "param": None, "code": None}
        assert not trained(asker)


async def test_a_rollout_that_ends_ends_its_streams_with_an_error() -> None:
    engine, steps = engine_of("one")
    async with running_endpoint() as endpoint:
        async with asking(endpoint, engine) as asker:
            outliving = Asker(asker.served, client_of(asker.served))
            stream = streaming(outliving, CHAT)
            release(steps, 1)
            told = await stream.__aenter__()
            await told.text()
        assert engine.running == 0
        assert (await told.rest())[-1]["error"]["code"] == "invalid_api_key"
        await stream.__aexit__(None, None, None)
        await outliving.client.aclose()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("text", ["a<tool_callx> b \n", "\u20ac\U0001f600 é", "STSTOP no", " \n ", "<<tool_call>x"])
def test_what_is_shown_is_always_the_beginning_of_what_is_said(text: str, size: int) -> None:
    shown = ShownText(ByteTokenizer().decode, beginning="B", stops=["STOP"], calls=HERMES)
    ids = ByteTokenizer().encode(text)
    final = "B" + text
    certain = min((final.find(mark) for mark in ("STOP", "<tool_call>") if mark in final), default=len(final))
    for at in range(0, len(ids), size):
        shown.add(ids[at : at + size])
        assert final[:certain].startswith(shown.shown)
    shown.finish(final)
    assert shown.shown == final
