"""What every registered workflow keeps, over a scripted rollout engine; a new one is covered by its registry line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.daemon.third_party import install
from synthetic.models.scripted_engine import running_endpoint
from synthetic.worlds.environment import contract_environment

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.agentscope.names import AGENTSCOPE_WORKFLOWS
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

MODEL = ModelSpec(path="m", max_model_len=2048, max_prompt_tokens=1500, max_response_tokens=500)
ROW = {"question": "16 - 7 = ?", "answer": "It is 16-7.\n#### 9"}
RIGHT = "<think> 16 - 7 </think> <answer> \\boxed{9} </answer>"


@dataclass
class ScriptedEngine:
    """Answers with `reply`; its weights change after the first token. Optionally holds every request."""

    reply: str = RIGHT
    hold: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    requests: list[GenerationRequest] = field(default_factory=list)

    @property
    def version(self) -> tuple[int, int]:
        return (5, 0)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        self.running += 1
        self.started.set()
        try:
            if self.hold:
                await asyncio.Event().wait()
            tokens = (*self.reply.encode(), EOS)
            # Log-probabilities that depend on the seed show whether an attempt is repeated exactly.
            noise = np.random.default_rng(request.sampling.seed).random(len(tokens))
            return Generation(
                tokens=tokens,
                logprobs=tuple(float(-value) for value in noise),
                spans=(Span(4, 0, 0, 1), Span(5, 0, 1, len(tokens))),
                finish="stop",
            )
        finally:
            self.running -= 1

    async def load_weights(self, weights: WeightsRef) -> str:
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=self.running, waiting=0)

    async def close(self) -> None:
        return None


def spec(workflow: str, *, reward: str | None = "accuracy_reward", prompt_type: str = "messages") -> TasksetSpec:
    return TasksetSpec(
        name="gsm8k",
        path="train.jsonl",
        format=Format(prompt_key="question", response_key="answer", prompt_type=prompt_type),
        workflow=workflow,
        workflow_args=ARGUMENTS.get(workflow, {}),
        reward=reward,
        sampling=SamplingSpec(max_tokens=400),
    )


ASKS_AS_COMMAND = """
import json, os, urllib.request
body = json.dumps({"messages": json.load(open(os.environ["RFTD_TASK"]))["messages"]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers))
"""
ARGUMENTS: dict[str, dict[str, object]] = {
    "agent_program_workflow": {"agent": "asks_once"},
    "agent_command_workflow": {"agent_command": [sys.executable, "-Ic", ASKS_AS_COMMAND]},
    "environment_workflow": {
        "environment": "command://sums",
        "environment_command": [sys.executable, "-I", "contract_environment.py"],
        "environment_folder": str(Path(contract_environment.__file__).parent),
        "max_steps": 1,
    },
}
"""The arguments of workflows that need some."""
ASKS_ONCE = """
import httpx


async def asks_once(task, *, base_url, api_key):
    messages = [message.as_dict() for message in task.messages]
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        response = await client.post(f"{base_url}/chat/completions", json={"messages": messages}, headers=headers)
        response.raise_for_status()
"""


@pytest.fixture(autouse=True)
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent program, installed."""
    install(tmp_path, "asking", ASKS_ONCE, {"rftd.agents": {"asks_once": "asking:asks_once"}})
    monkeypatch.syspath_prepend(str(tmp_path))


@asynccontextmanager
async def runner(
    taskset: TasksetSpec, engine: ScriptedEngine, *, model: ModelSpec = MODEL
) -> AsyncIterator[WorkflowRunner]:
    async with running_endpoint() as endpoint:
        yield WorkflowRunner(taskset, model=model, engine=engine, tokenizer=ByteTokenizer(), endpoint=endpoint)


def task(taskset: TasksetSpec, **columns: str) -> Task:
    return make_task({**ROW, **columns}, spec=taskset, row=11)


async def run(workflow: str, engine: ScriptedEngine, *, model: ModelSpec = MODEL, rollout: int = 1) -> RolloutResult:
    taskset = spec(workflow)
    async with runner(taskset, engine, model=model) as running:
        return await running.run(task(taskset), UUID(int=rollout))


pytestmark = pytest.mark.anyio
ENVIRONMENTS = (
    "frozen_lake_workflow",
    "email_search_workflow",
    "math_trainable_ruler_workflow",
    *AGENTSCOPE_WORKFLOWS,
)
"""Workflows with a world, a judge or a package of their own, tested beside the others."""
every_workflow = pytest.mark.parametrize("workflow", [name for name in WORKFLOWS.names() if name not in ENVIRONMENTS])


@every_workflow
async def test_a_result_fits_together(workflow: str) -> None:
    result = await run(workflow, ScriptedEngine())
    result.check(MODEL.max_model_len)
    assert result.reward == 1.0
    # A command has figures of its process besides, and a best answer the number of its rivals.
    assert {name: result.metrics[name] for name in result.metrics if not name.startswith(("sandbox_", "tries"))} == {
        "accuracy": 1.0
    }
    assert result.finish == "stop"
    assert result.loss_mask.sum() > 0
    assert (result.logprobs[result.loss_mask == 1] != 0).all()
    assert {span.version for span in result.spans} == {4, 5}
    trained = result.tokens[result.prompt_tokens :][result.loss_mask == 1]
    assert bytes(int(token) for token in trained if token < EOS).decode() == result.text == RIGHT


@every_workflow
async def test_the_same_rollout_gives_the_same_result(workflow: str) -> None:
    first, again, other = [await run(workflow, ScriptedEngine(), rollout=n) for n in (1, 1, 2)]
    assert first.tokens.tobytes() == again.tokens.tobytes()
    assert first.logprobs.tobytes() == again.logprobs.tobytes() != other.logprobs.tobytes()


@every_workflow
async def test_a_wrong_answer_earns_less(workflow: str) -> None:
    assert (await run(workflow, ScriptedEngine(reply="<answer> \\boxed{8} </answer>"))).reward == 0.0


@every_workflow
async def test_a_prompt_that_does_not_fit_trains_nothing(workflow: str) -> None:
    engine = ScriptedEngine()
    result = await run(workflow, engine, model=msgspec.structs.replace(MODEL, max_prompt_tokens=5))
    assert (result.reward, result.finish, result.loss_mask.tolist(), engine.requests) == (
        0.0,
        "prompt_truncated",
        [0],
        [],
    )
    with pytest.raises(RolloutError, match=r"(?s)the limit is 5.*taskset 'gsm8k' row 11"):
        await run(
            workflow,
            engine,
            model=msgspec.structs.replace(MODEL, max_prompt_tokens=5, enable_prompt_truncation=False),
        )


@every_workflow
async def test_cancelling_frees_the_engine(workflow: str) -> None:
    engine = ScriptedEngine(hold=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as scope:

            async def stop() -> None:
                await engine.started.wait()
                scope.reschedule(0)

            async with asyncio.TaskGroup() as group:
                group.create_task(stop())
                await run(workflow, engine)
    assert engine.running == 0


@every_workflow
async def test_many_rollouts_share_one_instance(workflow: str) -> None:
    taskset = spec(workflow)
    async with runner(taskset, ScriptedEngine()) as shared, asyncio.TaskGroup() as group:
        running = [group.create_task(shared.run(task(taskset), UUID(int=n))) for n in range(20)]
    assert len({future.result().logprobs.tobytes() for future in running}) == 20
