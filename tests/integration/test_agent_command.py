"""An agent's command as a workflow: what it had drawn is trained, and what goes wrong has a reason."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.docs.pages import block_named
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PYTHON = sys.executable
ASK = """
import json, os, sys, urllib.request
def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
task = json.load(open(os.environ["RFTD_TASK"]))
answer = ask(task["messages"])
"""
NODE = """
import { readFileSync, writeFileSync } from "node:fs";
const { messages } = JSON.parse(readFileSync(process.env.RFTD_TASK, "utf8"));
for (let turn = 0; turn < 2; turn++) {
  const reply = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    headers: { Authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ messages }),
  });
  const { message } = (await reply.json()).choices[0];
  messages.push(message, { role: "user", content: "Are you sure?" });
  writeFileSync("answer.txt", message.content);
}
"""


async def rollout_of(
    arguments: dict[str, Any], engine: ScriptedEngine | None = None, **columns: Any
) -> tuple[RolloutResult, ScriptedEngine]:
    """One rollout of an agent's command."""
    engine = engine or ScriptedEngine(["It may be 4.", "4"])
    taskset = TasksetSpec(
        name="sums",
        path="sums.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow="agent_command_workflow",
        workflow_args=arguments,
        sampling=SamplingSpec(max_tokens=200),
    )
    task = make_task({"question": "2+2?", "answer": "4", **columns}, spec=taskset, row=0)
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=SPEC, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)
        return await runner.run(task, UUID(int=1)), engine


def python(program: str, **arguments: Any) -> dict[str, Any]:
    return {"agent_command": [PYTHON, "-Ic", program], **arguments}


def trained(rollout: RolloutResult) -> list[int]:
    ids: list[int] = rollout.tokens[rollout.prompt_tokens :][rollout.loss_mask == 1].tolist()
    return ids


def drawn(engine: ScriptedEngine) -> list[int]:
    return [token for generation in engine.drawn for token in generation.tokens]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_the_shell_script_of_the_page_trains_what_it_drew(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "agent.sh").write_text(block_named("agent.sh").text)
    arguments = {
        "agent_command": ["sh", "agent.sh"],
        "agent_folder": str(tmp_path),
        "answer_file": "answer.txt",
        "isolation": isolation,
    }
    rollout, engine = await rollout_of(arguments)
    assert trained(rollout) == drawn(engine)
    assert not rollout.steps, "a conversation is one sequence"
    assert (rollout.reward, rollout.metrics["accuracy"]) == (1.0, 1.0)
    assert {name for name in rollout.metrics if name.startswith("sandbox_")} == {
        f"sandbox_{name}"
        for name in ("wall_s", "cpu_s", "memory_mib", "disk_mib", "processes", "output_kib", "left_processes")
    }
    assert rollout.metrics["sandbox_wall_s"] > 0 and rollout.metrics["sandbox_memory_mib"] > 0


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_a_program_in_node_trains_what_it_drew(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "agent.mjs").write_text(NODE)
    arguments = {"agent_command": ["node", "agent.mjs"], "agent_folder": str(tmp_path), "answer_file": "answer.txt"}
    rollout, engine = await rollout_of({**arguments, "isolation": isolation})
    assert trained(rollout) == drawn(engine)
    assert (rollout.reward, rollout.turns) == (1.0, 2)


async def test_columns_and_files_of_the_row_are_in_the_folder_and_the_answer_is_not() -> None:
    program = ASK + (
        "parts = {'files': float(open('src/a.txt').read() == 'text'), 'column': float(task['columns'] == {'hint': 7}),"
        " 'none': float('answer' not in json.dumps(task))}\njson.dump(parts, open('reward.json', 'w'))"
    )
    arguments = python(program, columns=["hint"], files_column="files", reward_file="reward.json")
    rollout, _ = await rollout_of(arguments, hint=7, files={"src/a.txt": "text"})
    assert rollout.reward == 3.0
    assert {name: rollout.metrics[name] for name in ("files", "column", "none")} == dict.fromkeys(
        ("files", "column", "none"), 1.0
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('nothing asked')", "received no answer from the model"),
        (ASK + "sys.stderr.write('out of ideas\\n')\nsys.exit(3)", "(?s)exit code 3.*out of ideas"),
        (ASK + "os.kill(os.getpid(), 9)", "signal 9"),
        (ASK + "print('x' * (2 << 20))", "its bound of 1 MiB of output"),
        ("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)", "its bound of 1 s"),
        (ASK, "did not write its file"),
        (ASK + "os.symlink('/etc/hostname', 'answer.txt')", "cannot be read"),
        (ASK + "open('answer.txt', 'w').write('4' * (5 << 20))", "more than 4194304 bytes"),
    ],
)
async def test_a_program_that_goes_wrong_fails_with_its_reason(program: str, reason: str) -> None:
    wall_s = 1.0 if "sleep" in program else 60.0
    arguments = python(program, answer_file="answer.txt", bounds={"wall_s": wall_s, "output_mib": 1})
    with pytest.raises(RolloutError, match=reason):
        await rollout_of(arguments)


@pytest.mark.parametrize("text", ["four", "{}", '{"a": "b"}', "1e99", "[1]", "null"])
async def test_a_reward_file_without_a_reward_fails(text: str) -> None:
    program = ASK + f"open('reward.json', 'w').write({text!r})"
    with pytest.raises(RolloutError, match="reward"):
        await rollout_of(python(program, reward_file="reward.json"))


async def test_a_prompt_that_does_not_fit_earns_nothing_however_the_command_ends() -> None:
    program = ASK + "ask(task['messages'] + [{'role': 'user', 'content': 'x' * 4000}])"
    rollout, _ = await rollout_of(python(program))
    assert (rollout.reward, rollout.finish, rollout.loss_mask.sum()) == (0.0, "prompt_truncated", 0)


async def test_a_cancelled_rollout_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = ScriptedEngine(hold=True)
    running = asyncio.ensure_future(rollout_of(python(ASK), engine))
    await engine.until(lambda engine: engine.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert runs_below(tmp_path) == []


def runs_below(folder: Path) -> list[Path]:
    return list(folder.glob("rftd-sandbox-*/run-*"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"agent_command": []}, "agent_command"),
        ({"agent_command": "node agent.mjs"}, "agent_command"),
        ({"agent_command": ["a\0"]}, "names no program"),
        ({}, "agent_command is not given"),
        ({"agent_command": ["a"], "agent_folder": "/no/such/folder"}, "is no folder"),
        ({"agent_command": ["a"], "answer_file": "a", "reward_file": "b"}, "both set"),
        ({"agent_command": ["a"], "isolation": "docker"}, "needs an image"),
        ({"agent_command": ["a"], "bounds": {"memory": 1}}, "bounds"),
        ({"agent_command": ["a"], "bounds": {"memory_mib": 0}}, "bounds"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        WORKFLOWS.check_arguments("agent_command_workflow", arguments)


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(ConfigError, match="more than 64 MiB"):
        WORKFLOWS.check_arguments("agent_command_workflow", {"agent_command": ["a"], "agent_folder": str(tmp_path)})


async def test_a_stub_of_docker_is_called_without_keys_on_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "docker"
    stub.write_text(STUB.replace("PYTHON", sys.executable).replace("CALLS", str(tmp_path / "calls.jsonl")))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    arguments = python(ASK, isolation="docker", image="debian:13", network=True)
    rollout, engine = await rollout_of(arguments, ScriptedEngine(["4"]))
    assert trained(rollout) == drawn(engine)
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [call[0] for call in calls] == ["ps", "run", "inspect", "rm"]
    words = calls[1]
    assert words[words.index("--cap-drop") :][:2] == ["--cap-drop", "ALL"]
    assert {"--read-only", "--init", "no-new-privileges", "debian:13"} <= set(words)
    assert "OPENAI_API_KEY" in words and not any("OPENAI_API_KEY=" in word for word in words)
    assert calls[3][-1] == words[words.index("--name") + 1]


STUB = """#!PYTHON
import json, os, sys
with open("CALLS", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    folder = next(word for word in sys.argv if word.endswith(":/sandbox")).removesuffix(":/sandbox")
    os.chdir(folder)
    command = sys.argv[sys.argv.index("debian:13") + 1:]
    os.execvp(command[0], command)
if sys.argv[1] == "inspect":
    print("false")
"""


async def test_an_agent_in_a_container_needs_the_network() -> None:
    with pytest.raises(RolloutError, match="cannot reach the model"):
        await rollout_of(python(ASK, isolation="docker", image="debian:13"))
