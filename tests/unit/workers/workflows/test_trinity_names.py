"""Names of Trinity-RFT's workflows: those here run, and each of the others is refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.registry import WORKFLOWS, check_workflow
from rftd.workers.workflows.rewards.tool_call import ToolCallReward
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.trinity.absent import ABSENT

PAGE = Path(__file__).parents[4] / "docs/trinity.md"
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
TOOLS = [{"name": "add", "parameters": {"a": "int", "b": "int"}}]


def called(*calls: Any, thought: str = "<think>sum</think>") -> str:
    return thought + "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


async def answered(workflow: str, reply: str, **row: Any) -> tuple[float, str]:
    """The reward of a rollout, and the prompt of its request."""
    spec = TasksetSpec(
        name="t",
        path="a.jsonl",
        format=Format(prompt_key="q", response_key="a", system_prompt="Be brief."),
        workflow=workflow,
        sampling=SamplingSpec(max_tokens=200),
    )
    engine = ScriptedEngine(replies=(reply,))
    model = type(SPEC)(path="m", max_model_len=4096, max_prompt_tokens=3000, max_response_tokens=500)
    runner = WorkflowRunner(spec, model=model, engine=engine, tokenizer=ByteTokenizer())
    result = await runner.run(make_task({"q": "1+2?", **row}, spec=spec, row=0), UUID(int=1))
    return result.reward, bytes(token for token in engine.requests[0].prompt if token < 256).decode()


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_workflow_is_refused_with_its_need_and_a_way(name: str) -> None:
    assert name not in WORKFLOWS.names()
    with pytest.raises(ConfigError, match=rf"{name} of Trinity-RFT needs ") as refused:
        check_workflow(name)
    assert refused.value.fix


def test_an_unknown_name_is_still_answered_by_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown workflow 'frozen_lke_workflow'") as refused:
        check_workflow("frozen_lke_workflow")
    assert "did you mean 'frozen_lake_workflow'?" in str(refused.value.fix)


def test_the_page_has_every_name_of_both_kinds() -> None:
    text = PAGE.read_text()
    for name in (*ABSENT, *WORKFLOWS.ours()):
        assert f"`{name}`" in text, name


@pytest.mark.anyio
@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)])
async def test_a_tool_call_is_offered_the_functions_and_scored_by_its_calls(tools: Any) -> None:
    reward, prompt = await answered("toolcall_workflow", called(CALL), a=json.dumps(CALL), tools=tools)
    assert reward == 1.0
    assert "Be brief.\n\nYou may call these functions" in prompt
    assert json.dumps(TOOLS) in prompt


@pytest.mark.anyio
async def test_distillation_asks_without_a_reward() -> None:
    reward, prompt = await answered("on_policy_distill_workflow", "3", a="3")
    assert reward == 0.0
    assert "1+2?" in prompt
    assert (await answered("on_policy_distill_math_workflow", "\\boxed{3}", a="3"))[0] == 1.0


@pytest.mark.parametrize(
    ("response", "accuracy"),
    [
        (called(CALL), 1.0),
        (called({"arguments": {"b": 2, "a": 1}, "name": "add"}), 1.0),
        (called({**CALL, "arguments": json.dumps(CALL["arguments"])}), 1.0),
        (called([CALL]), 1.0),
        (called(CALL, thought=""), 0.0),
        (called(CALL, CALL), 0.0),
        (called({**CALL, "name": "sub"}), 0.0),
        (called({**CALL, "arguments": {"a": 1}}), 0.0),
        (called(3), 0.0),
        ("<think>x</think><tool_call>{</tool_call>", 0.0),
        ("<think>x</think>" + "<tool_call>" + "[" * 100_000 + "</tool_call>", 0.0),
        ("<think>x</think>" + json.dumps(CALL), 0.0),
        ("", 0.0),
    ],
)
def test_calls_are_compared_by_name_and_arguments(response: str, accuracy: float) -> None:
    task = make_task(
        {"q": "x"}, spec=TasksetSpec(name="t", path="a", format=Format(prompt_key="q", response_key="")), row=0
    )
    assert ToolCallReward().score(response, json.dumps(CALL), task).value == accuracy


def test_calls_of_any_order_and_without_a_thought_count_where_asked() -> None:
    task = make_task(
        {"q": "x"}, spec=TasksetSpec(name="t", path="a", format=Format(prompt_key="q", response_key="")), row=0
    )
    other = {"name": "sub", "arguments": {}}
    score = ToolCallReward(with_think=False).score
    assert score(called(other, CALL, thought=""), json.dumps([CALL, other]), task).value == 1.0
    with pytest.raises(DataError, match="the truth has no calls in JSON"):
        score("", "no call", task)
