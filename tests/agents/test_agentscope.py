"""AgentScope's own agents under Trinity-RFT's names: all that is trained was drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import ScriptedEngine, running_endpoint

from rftd.streams.events.experience import RunStep
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

HARNESSES = Path(__file__).parents[2] / "build" / "agents"
PYTHON = HARNESSES / "agentscope" / "bin" / "python"
WIDE = ModelSpec(path="m", max_model_len=65536, max_prompt_tokens=60000, max_response_tokens=4000)
SERVER = """
from mcp.server.fastmcp import FastMCP

server = FastMCP("search")


@server.tool()
def search(query: str) -> str:
    return "The answer to everything is 42."


server.run()
"""
FUNCTION = """
from types import SimpleNamespace

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg


async def reply(row, model):
    agent = ReActAgent(name="mine", sys_prompt="Answer.", model=model, formatter=OpenAIChatFormatter())
    return await agent.reply(Msg("user", row["question"], role="user"))


async def solve(row, model):
    return float((await reply(row, model)).get_text_content() == row["answer"])


async def tuned(row, model, auxiliary_models):
    return SimpleNamespace(response=await reply(row, model), reward=None)


async def judge(row, response, auxiliary_models):
    return SimpleNamespace(reward=0.5 * (response.get_text_content() == row["answer"]))
"""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-agents installs it"),
]


def called(name: str, **arguments: Any) -> str:
    """The rest of a call that the agent requires: the endpoint has begun it."""
    return f'{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


CLOSING = [called("generate_response", result="\\boxed{42}"), "It is 42."]
"""The closing call, and the text after it."""


async def rollout_of(
    workflow: str, replies: list[str], reward: str | None = "math_boxed_reward", **arguments: Any
) -> tuple[RolloutResult, ScriptedEngine]:
    """One rollout of an agent, and the engine that answered."""
    taskset = TasksetSpec(
        name="sums",
        path="sums.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow=workflow,
        workflow_args={"python": str(PYTHON), **arguments},
        reward=reward,
        sampling=SamplingSpec(max_tokens=1000),
    )
    engine = ScriptedEngine(replies)
    task = make_task({"question": "6*7?", "answer": "42"}, spec=taskset, row=0)
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=WIDE, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)
        return await runner.run(task, UUID(int=1)), engine


def trained(rollout: RolloutResult) -> list[int]:
    """The trained ids of every sequence, in order."""
    ids: list[int] = []
    start = answered = 0
    for step in rollout.steps or (RunStep(len(rollout.tokens), rollout.prompt_tokens, 0.0),):
        response = rollout.tokens[start + step.prompt_tokens : start + step.tokens]
        ids += response[rollout.loss_mask[answered : answered + len(response)] == 1].tolist()
        start, answered = start + step.tokens, answered + len(response)
    return ids


def drawn(engine: ScriptedEngine) -> list[int]:
    return [token for generation in engine.drawn for token in generation.tokens]


@pytest.mark.parametrize("workflow", ["as_react_workflow", "agentscope_react_workflow"])
async def test_a_react_agent_is_trained_on_all_that_it_drew(workflow: str) -> None:
    rollout, engine = await rollout_of(workflow, CLOSING)
    assert len(engine.drawn) == 2
    assert trained(rollout) == drawn(engine)
    assert rollout.reward == 1.0


@pytest.mark.parametrize("workflow", ["agentscope_react_math_workflow", "agentscopev0_react_math_workflow"])
async def test_a_program_of_the_agent_is_run_and_its_output_is_in_the_next_prompt(workflow: str) -> None:
    rollout, engine = await rollout_of(workflow, [called("execute_python_code", code="print(6 * 7)"), *CLOSING])
    assert len(engine.drawn) == 3
    assert trained(rollout) == drawn(engine)
    assert "<stdout>42" in bytes(token for token in engine.requests[1].prompt if token < 256).decode()
    assert rollout.reward == 1.0


async def test_a_search_asks_the_server_by_mcp() -> None:
    rollout, engine = await rollout_of(
        "agentscope_v1_react_search_workflow",
        [called("search", query="everything"), called("generate_response", result="42"), "Done."],
        "exact_match_reward",
        search_command=[str(PYTHON), "-c", SERVER],
    )
    assert trained(rollout) == drawn(engine)
    assert "answer to everything is 42" in bytes(token for token in engine.requests[1].prompt if token < 256).decode()
    assert rollout.reward == 1.0


@pytest.mark.parametrize(
    ("workflow", "functions", "reward"),
    [
        ("agentscope_workflow_adapter", {"workflow_func": "mine.py:solve"}, 1.0),
        ("agentscope_workflow_adapter_v1", {"workflow_func": "mine.py:tuned", "judge_func": "mine.py:judge"}, 0.5),
    ],
)
async def test_a_function_with_the_model_of_agentscope_has_the_reward(
    workflow: str, functions: dict[str, str], reward: float, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    rollout, engine = await rollout_of(workflow, ["42"], None, agent_folder=str(tmp_path), **functions)
    assert trained(rollout) == drawn(engine)
    assert rollout.reward == reward
