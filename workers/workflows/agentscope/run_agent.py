"""One rollout of an AgentScope agent: reads `task.json`, and writes `answer.txt` or `reward.json`.

Run as `PYTHON run_agent.py`, by a Python with AgentScope 1, and configured by `agent.json` with the key `kind`:

    react     a ReAct agent with the meta tool
    math      a ReAct agent with `execute_python_code`
    search    a ReAct agent with the tools of a search server, spoken to by MCP
    function  a function of a file beside the program: `solve(task, model)` with a reward as result; with
              AgentScope's tuner, `solve(task, model, auxiliary_models)` with an output of fields, and a judge
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.mcp import StdIOStatefulClient
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, execute_python_code
from pydantic import BaseModel, Field

MATH_PROMPT = (
    "You are an agent specialized in solving math problems with tools. Please solve the math problem given to you. "
    "You can write and execute Python code to perform calculation or verify your answer. You should return your final "
    "answer within \\boxed{{}}."
)
SEARCH_PROMPT = (
    "You are a Web Information Seeking Master. Your task is to thoroughly seek the internet for information and "
    "provide accurate answers to questions."
)


class MathAnswer(BaseModel):
    """Arguments of the closing call for a problem of mathematics."""

    result: str = Field(
        description="Your solution of the given math problem. Put your final answer in boxed format, e.g., \\boxed{42}"
    )


class SearchAnswer(BaseModel):
    """Arguments of the closing call for a search."""

    result: str = Field(description="The final result to the initial user query")


def open_model() -> OpenAIChatModel:
    """Returns the trained model; the endpoint sets the sampling of its calls."""
    return OpenAIChatModel(
        model_name="any",
        api_key=os.environ["OPENAI_API_KEY"],
        stream=False,
        client_kwargs={"base_url": os.environ["OPENAI_BASE_URL"]},
    )


async def reply(arguments: dict[str, Any], prompt: str, toolkit: Toolkit) -> str:
    """Returns the text of the agent's closing call, else the text of its last message."""
    search = arguments["kind"] == "search"
    agent = ReActAgent(
        name="react_agent",
        sys_prompt=SEARCH_PROMPT if search else MATH_PROMPT,
        model=open_model(),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        enable_meta_tool=arguments["kind"] == "react",
        max_iters=arguments["max_turns"],
    )
    answer_type = SearchAnswer if search else MathAnswer
    message = await agent.reply(Msg("user", prompt, role="user"), structured_model=answer_type)
    result = (message.metadata or {}).get("result")
    return str(result) if result is not None else message.get_text_content() or ""


async def search(arguments: dict[str, Any], prompt: str) -> str:
    """Returns the agent's answer with the tools of the search server."""
    command, *words = arguments["search_command"]
    client = StdIOStatefulClient(name="search", command=command, args=words, env=dict(os.environ))
    await client.connect()
    try:
        toolkit = Toolkit()
        await toolkit.register_mcp_client(client)
        return await reply(arguments, prompt, toolkit)
    finally:
        await client.close()


def function_of(name: str) -> Callable[..., Any]:
    """Returns a function written as `FILE.py:NAME`."""
    file, _, function = name.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    target: Callable[..., Any] = getattr(module, function)
    return target


async def run_function(arguments: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """Returns the reward of the function, or of its judge, as a named part."""
    solve = function_of(arguments["workflow_func"])
    model = open_model()
    if not arguments["tuner"]:
        return {"reward": float(await solve(row, model))}
    output = await solve(row, model, {})
    reward = output.reward
    if arguments["judge_func"]:
        judgement = await function_of(arguments["judge_func"])(row, output.response, {})
        reward = judgement.reward
    return {"reward": float(reward)}


async def answer(arguments: dict[str, Any], prompt: str) -> str:
    """Returns the answer of a ReAct agent of that kind."""
    if arguments["kind"] == "search":
        return await search(arguments, prompt)
    toolkit = Toolkit()
    if arguments["kind"] == "math":
        toolkit.register_tool_function(execute_python_code)
    return await reply(arguments, prompt, toolkit)


def main() -> None:
    """Runs the agent of `agent.json` on the task of `task.json`."""
    arguments = json.loads(Path("agent.json").read_text())
    if arguments["kind"] == "function":
        row = json.loads(Path("row.json").read_text())
        Path("reward.json").write_text(json.dumps(asyncio.run(run_function(arguments, row))))
    else:
        task = json.loads(Path(os.environ["RFTD_TASK"]).read_text())
        Path("answer.txt").write_text(asyncio.run(answer(arguments, task["prompt"])))


if __name__ == "__main__":
    main()
