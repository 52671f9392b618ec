"""Thoughts and calls of tools as families of models write them, read from what was drawn and told in each API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.models.scripted_engine import SPEC, Asker, ScriptedEngine, asking, message_of, running_endpoint, user

from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.generation.endpoint.answer_form import THOUGHT_FORMS, TOOL_FORMS, AnswerForm, ThoughtForm
from rftd.workers.generation.endpoint.shown_text import ShownText
from rftd.workers.workflows.rewards.reward import RewardResult

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "who": {"type": "string"}, "on": {"type": "boolean"}},
}
PARAMETERS = {"add": SCHEMA, "wave": SCHEMA}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in PARAMETERS]
ADD = ("add", {"a": 1})
WAVE = ("wave", {"who": "you", "on": True})
BEGIN, CALL, SEP, END = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
QWEN_ADD = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
QWEN_WAVE = (
    "<tool_call>\n<function=wave>\n<parameter=who>\nyou\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n"
    "</function>\n</tool_call>"
)
BOTH = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "wave", "arguments": {"who": "you", "on": true}}\n</tool_call>',
    "qwen3_coder": f"{QWEN_ADD}\n{QWEN_WAVE}",
    "llama3_json": '{"name": "add", "parameters": {"a": 1}}; '
    '{"name": "wave", "parameters": {"who": "you", "on": true}}',
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]wave{"who": "you", "on": true}',
    "deepseek_v3": f'{BEGIN}{CALL}function{SEP}add\n```json\n{{"a": 1}}\n```{END}\n'
    f'{CALL}function{SEP}wave\n```json\n{{"who": "you", "on": true}}\n```{END}<｜tool▁calls▁end｜>',
    "deepseek_v31": f'{BEGIN}{CALL}add{SEP}{{"a": 1}}{END}{CALL}wave{SEP}{{"who": "you", "on": true}}{END}',
    "pythonic": "[add(a=1), wave(who='you', on=True)]",
}
"""By `tool_call_parser`: the two calls."""
MISTRAL_LIST = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]'
PYTHON_TAG = '<|python_tag|>{"name": "add", "parameters": {"a": 1}}'


def split(name: str, text: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    before, calls = TOOL_FORMS[name].split(text, PARAMETERS)
    return before, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("name", BOTH)
def test_calls_are_read_and_the_text_before_them(name: str) -> None:
    assert split(name, BOTH[name]) == ("", [ADD, WAVE])
    only_calls = not TOOL_FORMS[name].opens or name == "llama3_json"
    said = f"I do.\n{BOTH[name]}"
    assert split(name, said) == ((said, []) if only_calls else ("I do.", [ADD, WAVE]))


@pytest.mark.parametrize(("name", "text"), [("mistral", MISTRAL_LIST), ("llama3_json", f"So.\n{PYTHON_TAG}")])
def test_other_ways_to_write_a_call(name: str, text: str) -> None:
    assert split(name, text)[1] == [ADD]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": 1}\n</tool_call>'),
        ("hermes", "<tool_call>no"),
        ("qwen3_coder", f"{QWEN_ADD}<tool_call>add"),
        ("llama3_json", '{"name": "add"} and'),
        ("llama3_json", '{"a": 1}'),
        ("llama3_json", "{" * 100_000),
        ("mistral", "[TOOL_CALLS]add{1}"),
        ("mistral", "[TOOL_CALLS] [1]"),
        ("mistral", "[TOOL_CALLS] [" * 50_000),
        ("deepseek_v3", f"{BEGIN}{CALL}function{SEP}add\n```json\n[1]\n```{END}"),
        ("deepseek_v3", f"{BEGIN}{CALL}add"),
        ("deepseek_v31", f"{BEGIN}nothing"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[add(1)]"),
        ("pythonic", "[add(a=open('x'))]"),
        ("pythonic", "[add(**a)]"),
        ("pythonic", "[add(a=1)"),
        ("pythonic", "[" * 10_000),
    ],
)
def test_what_is_malformed_stays_text(name: str, text: str) -> None:
    assert split(name, text) == (text, [])


@pytest.mark.parametrize("name", BOTH)
def test_a_demanded_call_is_begun_so_that_it_can_be_gone_on_with(name: str) -> None:
    form = TOOL_FORMS[name]
    whole = {
        "hermes": '{"a": 1}}\n</tool_call>',
        "qwen3_coder": "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "llama3_json": '{"a": 1}}',
        "mistral": '{"a": 1}}]',
        "deepseek_v3": f'{{"a": 1}}\n```{END}',
        "deepseek_v31": f'{{"a": 1}}{END}',
        "pythonic": "a=1)]",
    }
    assert split(name, form.begin("add") + whole[name]) == ("", [ADD])
    assert form.begin("add").startswith(form.begin(None))


def test_an_argument_has_the_type_that_its_tool_says() -> None:
    text = QWEN_WAVE.replace("True", "maybe").replace("you", "7")
    assert split("qwen3_xml", text) == ("", [("wave", {"who": "7", "on": "maybe"})])


@pytest.mark.parametrize(
    ("name", "opened", "text", "thought", "answer"),
    [
        ("qwen3", False, "<think>\nhm\n</think>\n\n4", "\nhm\n", "\n\n4"),
        ("qwen3", False, "4", None, "4"),
        ("qwen3", True, "hm</think>4", "hm", "4"),
        ("qwen3", True, "hm", "hm", ""),
        ("deepseek_r1", True, "<think>hm</think>4</think>", "hm", "4</think>"),
        ("mistral", False, " [THINK]hm[/THINK]4", "hm", "4"),
    ],
)
def test_thoughts_are_told_from_answers(name: str, opened: bool, text: str, thought: str | None, answer: str) -> None:
    assert THOUGHT_FORMS[name].split(text, opened=opened) == (thought, answer)


MARKS = (
    "a",
    " ",
    "\n",
    "<",
    "[",
    "{",
    "</think>",
    "<think>",
    "<th",
    "<tool_call>",
    "<tool",
    "STOP",
    "ST",
    "\u20ac",
    "[TOOL_",
)
PIECES = st.sampled_from([*MARKS, *BOTH.values(), MISTRAL_LIST, PYTHON_TAG])


def finally_said(form: AnswerForm, text: str, opened: bool) -> tuple[str, str]:
    thought = None
    if form.thoughts is not None:
        thought, text = form.thoughts.split(text, opened=opened)
    return thought or "", form.tools.split(text, PARAMETERS)[0]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PIECES, max_size=6).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from(sorted(TOOL_FORMS)),
    st.sampled_from([None, *sorted(set(THOUGHT_FORMS.values()))]),
    st.booleans(),
    st.booleans(),
)
def test_no_way_to_cut_a_stream_changes_what_is_told(
    text: str, sizes: list[int], tools: str, thoughts: ThoughtForm | None, opened: bool, stopped: bool
) -> None:
    """Whatever the parts are, what was shown is the beginning of what is said at last."""
    form = AnswerForm(TOOL_FORMS[tools], thoughts)
    opened = opened or (thoughts is not None and thoughts.always)
    shown = ShownText(ByteTokenizer().decode, stops=("STOP",), calls=form.tools, thoughts=thoughts, in_thought=opened)
    ids = ByteTokenizer().encode(text)
    at = 0
    while at < len(ids):
        size = sizes[at % len(sizes)]
        shown.add(ids[at : at + size])
        at += size
    # An answer ends at a stop text, or, for another reason, behind it.
    thought, said = finally_said(form, text.partition("STOP")[0] if stopped else text, opened)
    shown.finish(said, thought)
    assert (shown.thought, shown.shown) == (thought, said)


class OpenedTokenizer(ByteTokenizer):
    """Its template begins a thought, as those of reasoning models do."""

    def chat_text(self, *args: Any, **kwargs: Any) -> str:
        text = super().chat_text(*args, **kwargs)
        return text + "<think>\n" if kwargs["generation_prompt"] else text


def drawn_by(engine: ScriptedEngine) -> list[int]:
    return [token for generation in engine.drawn for token in generation.tokens]


def trained(asker: Asker) -> list[int]:
    (result,) = asker.served.results(RewardResult(value=0.0))
    tokens: list[int] = result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist()
    return tokens


async def events(asker: Asker, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    async with asker.client.stream("POST", path, json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
    return found


@pytest.mark.anyio
async def test_thoughts_and_calls_are_told_in_each_api_and_all_that_was_drawn_is_trained() -> None:
    spec = msgspec.structs.replace(SPEC, tool_call_parser="qwen3_coder", reasoning_parser="qwen3")
    engine = ScriptedEngine([f"I add.\n</think>\n\nSo:\n{QWEN_ADD}", "2"])
    async with (
        running_endpoint() as endpoint,
        asking(endpoint, engine, spec=spec, tokenizer=OpenedTokenizer()) as asker,
    ):
        said = message_of(await asker.chat(user("1+1?"), tools=TOOLS))
        assert (said["reasoning"], said["content"]) == ("I add.\n", "\n\nSo:")
        assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
        told = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "2"}
        await asker.chat(user("1+1?"), said, told, tools=TOOLS)
        # The second turn goes on from the ids of the first, thought and all.
        first, second = engine.requests
        assert second.prompt[: len(first.prompt) + len(engine.drawn[0].tokens)] == (
            *first.prompt,
            *engine.drawn[0].tokens,
        )
        assert trained(asker) == drawn_by(engine)

        chunks = await events(asker, "/chat/completions", {"messages": [user("b")], "tools": TOOLS})
        deltas = [choice["delta"] for each in chunks for choice in each["choices"]]
        assert "".join(delta.get("reasoning", "") for delta in deltas) == "I add.\n"
        assert "".join(delta.get("content", "") for delta in deltas) == "\n\nSo:"
        tool = {"type": "function", "name": "add", "parameters": SCHEMA}
        engine.requests.clear()
        told_of = await events(asker, "/responses", {"input": "c", "tools": [tool]})
        assert [item["type"] for item in told_of[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]
        assert [each["sequence_number"] for each in told_of] == list(range(len(told_of)))
        engine.requests.clear()
        tool = {"name": "add", "input_schema": SCHEMA}
        blocks = await events(asker, "/messages", {"messages": [user("d")], "tools": [tool], "max_tokens": 300})
        begun = [each["content_block"]["type"] for each in blocks if each["type"] == "content_block_start"]
        assert begun == ["thinking", "text", "tool_use"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body", "delta"),
    [
        ("/responses", {"input": "a"}, lambda event: event.get("delta")),
        ("/messages", {"messages": [user("a")], "max_tokens": 9}, lambda event: event.get("delta", {}).get("text")),
    ],
)
async def test_the_other_apis_tell_each_token_when_it_is_drawn(path: str, body: dict[str, Any], delta: Any) -> None:
    steps = asyncio.Semaphore(1)
    engine = ScriptedEngine(["ab c"], steps=steps)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        texts = []
        async with asker.client.stream("POST", path, json={**body, "stream": True}) as response:
            async for line in response.aiter_lines():
                text = delta(json.loads(line.removeprefix("data: "))) if line.startswith("data: ") else None
                if text:
                    texts.append(text)
                    if len(texts) == 1:
                        assert not engine.drawn
                        for _ in range(4):
                            steps.release()
        assert texts[0] == "a"
        assert "".join(texts) == "ab c"
        assert trained(asker) == drawn_by(engine)


@pytest.mark.anyio
async def test_a_demanded_call_ends_the_thought_that_the_template_began() -> None:
    spec = msgspec.structs.replace(SPEC, reasoning_parser="qwen3")
    engine = ScriptedEngine(['{"a": 1}}\n</tool_call>'])
    choice = {"type": "function", "function": {"name": "add"}}
    async with (
        running_endpoint() as endpoint,
        asking(endpoint, engine, spec=spec, tokenizer=OpenedTokenizer()) as asker,
    ):
        said = message_of(await asker.chat(user("1+1?"), tools=TOOLS, tool_choice=choice))
        assert said["tool_calls"][0]["function"]["name"] == "add"
        assert "reasoning" not in said
    asked = ByteTokenizer().decode(engine.requests[0].prompt)
    assert asked.endswith('<think>\n</think>\n\n<tool_call>\n{"name": "add", "arguments": ')


@pytest.mark.anyio
async def test_calls_that_are_left_to_the_model_stay_text_where_the_file_says_so() -> None:
    spec = msgspec.structs.replace(SPEC, auto_tool_choice=False)
    engine = ScriptedEngine([BOTH["hermes"]])
    async with running_endpoint() as endpoint, asking(endpoint, engine, spec=spec) as asker:
        said = message_of(await asker.chat(user("a"), tools=TOOLS))
        assert (said["content"], said.get("tool_calls")) == (BOTH["hermes"], None)
