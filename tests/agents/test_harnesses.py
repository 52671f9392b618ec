"""Harnesses of others as agents' commands, unchanged: all that they are trained on is what was drawn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

HARNESSES = Path(__file__).parents[2] / "build" / "agents"
WIDE = ModelSpec(path="m", max_model_len=65536, max_prompt_tokens=60000, max_response_tokens=4000)
BROKEN = "def add(a, b):\n    return a - b\n"
WHOLE = "def add(a, b):\n    return a + b\n"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not (HARNESSES / ".ready").exists(), reason="make test-agents installs them"),
]


async def rollout_of(
    arguments: dict[str, Any], engine: ScriptedEngine, truth: str, model: ModelSpec = SPEC, **columns: Any
) -> RolloutResult:
    """One rollout of a harness."""
    taskset = TasksetSpec(
        name="bugs",
        path="bugs.jsonl",
        format=Format(prompt_key="issue", response_key="fixed"),
        workflow="agent_command_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=1000),
    )
    task = make_task({"issue": "add subtracts", "fixed": truth, **columns}, spec=taskset, row=0)
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=model, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)
        return await runner.run(task, UUID(int=1))


def trained(rollout: RolloutResult) -> list[int]:
    ids: list[int] = rollout.tokens[rollout.prompt_tokens :][rollout.loss_mask == 1].tolist()
    return ids


def drawn(engine: ScriptedEngine) -> list[int]:
    return [token for generation in engine.drawn for token in generation.tokens]


def bash(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"I run a command.\n<tool_call>\n{call}\n</tool_call>"


async def test_mini_swe_agent_mends_a_file_of_its_task() -> None:
    engine = ScriptedEngine(
        [
            bash("cat src/adder.py"),
            bash("sed -i 's/-/+/' src/adder.py"),
            bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ]
    )
    command = f'exec {HARNESSES}/bin/mini -y --exit-immediately -l 0 -m openai/any -o run.json -t "$(cat prompt.txt)"'
    arguments = {
        "agent_command": ["sh", "-c", command],
        "files_column": "files",
        "answer_file": "src/adder.py",
        "readable": [str(HARNESSES)],
        "environ": {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "TERM": "dumb"},
        "bounds": {"wall_s": 300},
    }
    rollout = await rollout_of(arguments, engine, WHOLE, WIDE, files={"src/adder.py": BROKEN})
    assert len(engine.drawn) == 3
    assert trained(rollout) == drawn(engine)
    assert not rollout.steps, "a conversation is one sequence"
    assert rollout.reward == 1.0, "the file is what it should be"


SDK = """
import OpenAI from "openai";
import { readFileSync, writeFileSync } from "node:fs";

const { messages } = JSON.parse(readFileSync(process.env.RFTD_TASK, "utf8"));
const client = new OpenAI();
for (let turn = 0; turn < 2; turn++) {
  const stream = client.chat.completions.stream({ model: "any", messages });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  messages.push({ role: "assistant", content: message.content }, { role: "user", content: "Are you sure?" });
  writeFileSync("answer.txt", message.content);
}
"""


@pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="there is no node, or no npm")
async def test_the_sdk_of_openai_for_node_streams_two_turns(tmp_path: Path) -> None:
    (tmp_path / "agent.mjs").write_text(SDK)
    (tmp_path / "node_modules").symlink_to(HARNESSES / "node_modules")
    engine = ScriptedEngine(["It may be 4.", "4"])
    arguments = {
        "agent_command": ["node", "agent.mjs"],
        "agent_folder": str(tmp_path),
        "answer_file": "answer.txt",
        "readable": [str(HARNESSES)],
    }
    rollout = await rollout_of(arguments, engine, "4")
    assert trained(rollout) == drawn(engine)
    assert not rollout.steps
    assert rollout.reward == 1.0
