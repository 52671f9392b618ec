"""Agent programs over the SDKs that agents are written with, unchanged, each a rollout of an experiment; prints JSON.

python -P tests/bench/agent_sdks.py --environments build/bench-agents

Each program of `agents/programs.py` runs in a process and an environment of its own, started by an agent program of
rftd, over an engine whose answers are given: a tool's call, an answer, an answer to a question back. It fails unless
the trained ids are the drawn ones, all of them and in order, in one sequence, and unless the loss of a policy gradient
step, computed from the record by a small random model, is that of the same conversation held by a workflow in the
process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.third_party import install
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, running_endpoint

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.generation.model import Model
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.trajectory import Trajectory

PROGRAMS = Path(__file__).parent / "agents" / "programs.py"
REPLIES = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 20, "b": 22}}\n</tool_call>',
    "It is 42.",
    "Yes: 42.",
)
TOLD = ("\ntool: 42\nassistant: ", "\nuser: Are you sure?\nassistant: ")
"""The template's text between two answers."""
ENVIRONMENTS = {
    "openai": "sdks",
    "openai_responses": "sdks",
    "openai_agents": "sdks",
    "openai_agents_responses": "sdks",
    "anthropic": "sdks",
    "litellm": "litellm",
    "verifiers": "verifiers",
}
PACKAGES = {"openai_responses": "openai", "openai_agents": "openai-agents", "openai_agents_responses": "openai-agents"}
TURNS = {"verifiers": 2}
"""A tool environment ends with the first answer that calls no tool; the others ask back."""
TIMEOUT_S = 300.0
STARTED = '''
"""Runs the program that a task names, as agents in other languages are run: by URL and key in its environment."""
import asyncio
import os
import subprocess

async def solve(task, *, base_url, api_key):
    told = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key, "NO_PROXY": "*"}
    command = task.prompt.split("\\n")
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **told}, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    return float(process.returncode == 0 and said.decode().endswith(task.truth))
'''


async def tick(steps: asyncio.Semaphore) -> None:
    """Lets a token be drawn now and then, so that a stream has something to tell before the end."""
    while True:
        await asyncio.sleep(0.005)
        if steps.locked():
            steps.release()


async def over_endpoint(program: str, python: Path) -> tuple[RolloutResult, ScriptedEngine]:
    """The rollout of a program, as an explorer runs it."""

    taskset = TasksetSpec(
        name="sums",
        path="sums.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow="agent_program_workflow",
        workflow_args={"agent": "started"},
        sampling=SamplingSpec(max_tokens=200),
    )
    said = REPLIES[TURNS.get(program, 3) - 1]
    task = make_task({"question": f"{python}\n{PROGRAMS}\n{program}", "answer": said}, spec=taskset, row=0)
    steps = asyncio.Semaphore(0)
    scripted = ScriptedEngine(REPLIES, steps=steps)
    async with running_endpoint() as endpoint:
        runner = WorkflowRunner(taskset, model=SPEC, engine=scripted, tokenizer=ByteTokenizer(), endpoint=endpoint)
        ticking = asyncio.ensure_future(tick(steps))
        try:
            return await asyncio.wait_for(runner.run(task, UUID(int=1)), TIMEOUT_S), scripted
        finally:
            ticking.cancel()


async def in_process(prompt: Sequence[int], turns: int, sampling: SamplingSpec) -> RolloutResult:
    """The same conversation, held by a workflow that asks the model itself."""
    model = Model(ScriptedEngine(REPLIES), ByteTokenizer(), spec=SPEC, sampling=sampling, rollout=UUID(int=1))
    trajectory = Trajectory()
    trajectory.add(await model.generate(prompt))
    for told in TOLD[: turns - 1]:
        trajectory.add(await model.generate([*trajectory.tokens, *model.tokenizer.encode(told)]))
    return trajectory.result(RewardResult(value=1.0))


def loss_of(result: RolloutResult, network: Qwen2ForCausalLM) -> float:
    """The clipped policy-gradient loss of the trained tokens at an advantage of 1."""
    tokens = torch.from_numpy(result.tokens.astype(np.int64))
    mask = torch.from_numpy(result.loss_mask.astype(bool))
    old = torch.from_numpy(result.logprobs.astype(np.float32))
    with torch.no_grad():
        logprobs = network(tokens[None]).logits[0, :-1].log_softmax(-1)  # [T - 1, V]
    new = logprobs.gather(1, tokens[1:, None])[result.prompt_tokens - 1 :, 0]  # [T - prompt]
    ratio = (new - old).exp()
    return float(-torch.minimum(ratio, ratio.clamp(0.8, 1.2))[mask].mean())


def version_of(program: str, python: Path) -> str:
    name = PACKAGES.get(program, program)
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return f"{name} " + subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


async def figures_of(program: str, python: Path, network: Qwen2ForCausalLM) -> dict[str, Any]:
    begin_s = time.perf_counter()
    result, scripted = await over_endpoint(program, python)
    wall_s = time.perf_counter() - begin_s
    drawn = [token for generation in scripted.drawn for token in generation.tokens]
    trained = result.tokens[result.prompt_tokens :][result.loss_mask == 1].tolist()
    assert result.reward == 1.0, f"{program} failed"
    assert not result.steps, f"{program}: the conversation became {len(result.steps)} sequences"
    assert trained == drawn, f"{program}: {len(trained)} trained ids are not the {len(drawn)} drawn ones"
    turns = TURNS.get(program, 3)
    assert len(scripted.requests) == turns, f"{program} asked {len(scripted.requests)} times"
    asked = scripted.requests[0].sampling
    sampling = SamplingSpec(max_tokens=200, temperature=asked.temperature, top_p=asked.top_p)
    beside = await in_process(result.tokens[: result.prompt_tokens].tolist(), turns, sampling)
    losses = [loss_of(each, network) for each in (result, beside)]
    assert losses[0] == losses[1], f"{program}: losses are {losses}"
    return {
        "of": version_of(program, python),
        "calls": turns,
        "trained_of_drawn_tokens": [len(trained), len(drawn)],
        "loss": losses[0],
        "loss_in_process": losses[1],
        "wall_s": round(wall_s, 1),
    }


async def main(environments: Path, programs: Sequence[str]) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    network = Qwen2ForCausalLM(config).eval()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), "started", STARTED, {"rftd.agents": {"started": "started:solve"}})
        sys.path.append(folder)
        for program in programs:
            python = environments / ENVIRONMENTS[program] / "bin" / "python"
            found[program] = await figures_of(program, python.absolute(), network)
    assert found
    tell(found)


if __name__ == "__main__":
    given = read_options(
        __doc__,
        environments={"type": Path, "required": True, "help": "a folder with the environments"},
        only={"nargs": "+", "choices": list(ENVIRONMENTS), "default": list(ENVIRONMENTS)},
    )
    asyncio.run(main(given.environments, given.only))
