"""An agent program as a workflow: what it had drawn is what a workflow in the process would have drawn."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import httpx
import msgspec
import numpy as np
import pytest
from opentelemetry.propagate import inject
from opentelemetry.trace import get_current_span
from synthetic.models.scripted_engine import SPEC, ScriptedEngine, message_of, running_endpoint, user
from synthetic.servers.kept_spans import KeptSpans
from transformers import AutoModelForCausalLM

from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConfigError, RolloutError
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ModelSpec, SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.hf_tokenizer import open_tokenizer
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.torch_bytes import bytes_of
from rftd.workers.workflows.agent_program import AGENTS, AgentProgramWorkflow
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import EngineFromThreads, on_own_thread
from rftd.workers.workflows.trajectory import Trajectory

pytestmark = pytest.mark.anyio


AGAIN = "Are you sure?"


async def three_turns(task: Task, *, base_url: str, api_key: str) -> None:
    """Asks three times, with all that was said before."""
    messages = [message.as_dict() for message in task.messages]
    client = httpx.AsyncClient(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, trust_env=False)
    async with client:
        for _ in range(3):
            response = await client.post("/chat/completions", json={"model": "m", "messages": messages}, timeout=60)
            response.raise_for_status()
            messages += [message_of(response.json()), user(AGAIN)]


class ThreeTurns:
    """The same in the process; `between` is the template's text between an answer and the next."""

    default_reward = "exact_match_reward"

    def __init__(self, between: Callable[[Response], str]) -> None:
        self._between = between

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        trajectory = Trajectory()
        response = await model.chat(task.messages)
        trajectory.add(response)
        for _ in range(2):
            told = model.tokenizer.encode(self._between(response))
            response = await model.generate([*trajectory.tokens, *told])
            trajectory.add(response)
        return trajectory.result(await reward.score(response.text, task, turns=trajectory.turns))


@asynccontextmanager
async def runner_of(
    monkeypatch: pytest.MonkeyPatch,
    agent: Callable[..., Any],
    engine: RolloutEngine,
    *,
    model: ModelSpec = SPEC,
    tokenizer: Tokenizer | None = None,
    sampling: SamplingSpec | None = None,
    sampling_of: str = "request",
    workflow: Callable[..., Any] | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[WorkflowRunner]:
    """A runner whose workflow is the agent's, or `workflow`."""
    monkeypatch.setattr(AGENTS, "load", lambda name: agent)
    monkeypatch.setattr(AGENTS, "check", lambda name: None)
    if workflow is not None:
        monkeypatch.setattr(WORKFLOWS, "open", lambda name, given: workflow)
    taskset = TasksetSpec(
        name="t",
        path="t.jsonl",
        format=Format(prompt_key="q", response_key="a"),
        workflow="agent_program_workflow",
        workflow_args={"agent": "mine", "sampling": sampling_of},
        sampling=sampling or SamplingSpec(max_tokens=40),
    )
    async with running_endpoint(tracer) as endpoint:
        yield WorkflowRunner(
            taskset, model=model, engine=engine, tokenizer=tokenizer or ByteTokenizer(), endpoint=endpoint
        )


def task(question: str = "2+2?") -> Task:
    spec = TasksetSpec(
        name="t",
        path="t.jsonl",
        format=Format(prompt_key="q", response_key="a"),
        workflow="agent_program_workflow",
        sampling=SamplingSpec(),
    )
    return make_task({"q": question, "a": "4"}, spec=spec, row=3)


def equal(first: RolloutResult, second: RolloutResult) -> bool:
    """True if two results are the same in every field."""
    ours = msgspec.structs.asdict(first)
    theirs = msgspec.structs.asdict(second)
    arrays = [name for name, value in ours.items() if isinstance(value, np.ndarray)]
    assert len(arrays) >= 3
    return all(ours.pop(name).tobytes() == theirs.pop(name).tobytes() for name in arrays) and ours == theirs


async def test_an_experience_is_that_of_the_same_workflow_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for workflow in (None, ThreeTurns(lambda _: f"\nuser: {AGAIN}\nassistant: ")):
        engine = ScriptedEngine(["3", "5", "4"])
        async with runner_of(monkeypatch, three_turns, engine, workflow=workflow) as runner:
            results.append(await runner.run(task(), UUID(int=7)))
    assert equal(*results)
    assert results[0].reward == 1.0
    assert results[0].loss_mask.sum() == 6


@pytest.mark.parametrize("sampling", [SamplingSpec(max_tokens=12), SamplingSpec(max_tokens=9, processed_logprobs=True)])
async def test_the_same_holds_of_a_model_that_draws_what_no_text_would_be_encoded_as(
    sampling: SamplingSpec, monkeypatch: pytest.MonkeyPatch, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """A random model draws marks of roles and half characters; log-probabilities and spans are the torch engine's."""
    folder = model_of("qwen2")
    tokenizer = open_tokenizer(str(folder))
    model = ModelSpec(path=str(folder), max_model_len=200, max_prompt_tokens=180, max_response_tokens=20)

    def between(response: Response) -> str:
        ended = response.tokens[-1] in tokenizer.eos_ids
        return ("" if ended else "<eos>") + f"<|user|>{AGAIN}<|assistant|>"

    settings = {"slots": 2, "max_model_len": 200, "threads": 1}
    engine = await TorchRolloutEngine.open(str(folder), **settings)  # type: ignore[arg-type]
    tensors = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    written = checkpoint.export(bytes_of(tensors), tmp_path / "v0", version=0, generation=0)
    names = ("path", "manifest", "checksum")
    await engine.load_weights(WeightsRef(version=0, generation=0, **{name: getattr(written, name) for name in names}))
    try:
        results = []
        for workflow in (None, ThreeTurns(between)):
            given = {"model": model, "tokenizer": tokenizer, "sampling": sampling, "workflow": workflow}
            async with runner_of(monkeypatch, three_turns, engine, **given) as runner:  # type: ignore[arg-type]
                results.append([await runner.run(task(), UUID(int=number)) for number in range(6)])
    finally:
        await engine.close()
    for ours, theirs in zip(*results, strict=True):
        assert equal(ours, theirs)
        assert not ours.steps


def asks(question: str, base_url: str, api_key: str) -> str:
    """The answer, as a program that blocks asks for it."""
    body = json.dumps({"messages": [user(question)]}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        content: str = message_of(json.load(response))["content"]
        return content


@pytest.mark.parametrize(
    ("returned", "reward", "metrics"),
    [
        (0.25, 0.25, {}),
        ({"right": 1, "short": -0.5}, 0.5, {"right": 1.0, "short": -0.5}),
        (None, 1.0, {"accuracy": 1.0}),
    ],
)
async def test_what_a_program_returns_is_the_reward(
    returned: object, reward: float, metrics: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function blocks: it is on a thread of its own, while the endpoint answers it."""

    def program(task: Task, *, base_url: str, api_key: str) -> object:
        assert threading.current_thread() is not threading.main_thread()
        assert asks(task.prompt, base_url, api_key) == "4"
        return returned

    async with runner_of(monkeypatch, program, ScriptedEngine(["4"])) as runner:
        result = await runner.run(task(), UUID(int=1))
    assert (result.reward, result.metrics) == (reward, metrics)


async def test_a_program_may_run_on_a_loop_of_its_own_that_it_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is the one of `concurrent_mode: multi-threading`."""

    async def program(task: Task, *, base_url: str, api_key: str) -> float:
        return float(asks(task.prompt, base_url, api_key))

    async with runner_of(monkeypatch, program, EngineFromThreads(ScriptedEngine(["4"]))) as runner:
        result = await on_own_thread(lambda: runner.run(task(), UUID(int=1)))
    assert result.reward == 4.0


@pytest.mark.parametrize("threaded", [False, True])
async def test_an_instrumented_program_s_spans_and_calls_are_in_the_rollout_s_trace(
    threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program does what OpenTelemetry's instrumentation of a client does, on a thread and a loop of its own."""
    sink = KeptSpans()
    tracer = Tracer(sink, clock=SystemClock(), random=Random(1), ratio=0.0)

    async def program(task: Task, *, base_url: str, api_key: str) -> float:
        headers: dict[str, str] = {"Authorization": f"Bearer {api_key}"}
        inject(headers)
        async with httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False) as client:
            said = await client.post("/chat/completions", json={"messages": [user(task.prompt)]})
        assert said.status_code == 200
        return 1.0

    scripted = ScriptedEngine(["4"])
    engine = EngineFromThreads(scripted) if threaded else scripted
    async with runner_of(monkeypatch, program, engine, tracer=tracer) as runner:
        with tracer.always("rollout") as rollout:
            work = partial(runner.run, task(), UUID(int=1))
            await (on_own_thread(work) if threaded else work())
        assert not get_current_span().get_span_context().is_valid, "nothing of it is left behind"
    spans = {span.name: span for span in sink.spans}
    agent, served = spans["invoke_agent mine"], spans["POST /v1/chat/completions"]
    assert agent.parent_id == rollout.context.span_id
    assert (served.parent_id, served.remote_parent) == (agent.context.span_id, True)
    assert {span.context.trace_id for span in sink.spans} == {rollout.context.trace_id}
    assert list(served.links) == [], "it is in the rollout's own trace"


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("returns", "which is not a finite number"),
        ("raises", "raised ZeroDivisionError"),
        ("exits", "exited with 3"),
        ("is idle", "received no answer"),
    ],
)
async def test_what_is_wrong_with_a_program_fails_its_rollout(
    wrong: str, says: str, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(task: Task, *, base_url: str, api_key: str) -> object:
        if wrong != "is idle":
            asks_of = asks if blocks else (lambda *_: None)
            asks_of(task.prompt, base_url, api_key)
        if wrong == "raises":
            raise ZeroDivisionError
        if wrong == "exits":
            raise SystemExit(3)
        return "four" if wrong == "returns" else None

    async def waits(task: Task, *, base_url: str, api_key: str) -> object:
        if wrong == "returns":
            await three_turns(task, base_url=base_url, api_key=api_key)
        return program(task, base_url=base_url, api_key=api_key)

    async with runner_of(monkeypatch, program if blocks else waits, ScriptedEngine()) as runner:
        with pytest.raises(RolloutError, match=f"(?s){says}.*row 3"):
            await runner.run(task(), UUID(int=1))


async def test_a_program_whose_conversation_outgrew_the_model_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is that of a workflow in the process, unless the program itself knows what to do then."""

    async def stubborn(task: Task, *, base_url: str, api_key: str) -> float:
        await three_turns(task, base_url=base_url, api_key=api_key)
        return 1.0

    async def content(task: Task, *, base_url: str, api_key: str) -> float:
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await three_turns(task, base_url=base_url, api_key=api_key)
        return 1.0

    model = msgspec.structs.replace(SPEC, max_prompt_tokens=50)
    workflow = ThreeTurns(lambda _: f"\nuser: {AGAIN}\nassistant: ")
    results = []
    for program, instead in ((stubborn, None), (content, None), (stubborn, workflow)):
        async with runner_of(monkeypatch, program, ScriptedEngine(), model=model, workflow=instead) as runner:
            results.append(await runner.run(task(), UUID(int=1)))
    assert [result.finish for result in results] == ["prompt_truncated", "stop", "prompt_truncated"]
    assert [result.reward for result in results] == [0.0, 1.0, 0.0]
    assert not results[0].loss_mask.any()
    assert equal(results[0], results[2])


async def test_an_engine_that_fails_is_the_reason_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: object) -> Any:
            raise RolloutError("the engine is closed")

    async with runner_of(monkeypatch, three_turns, Failing()) as runner:
        with pytest.raises(RolloutError, match="the engine is closed"):
            await runner.run(task(), UUID(int=1))


@pytest.mark.parametrize("sampling", ["request", "taskset"])
async def test_the_experiment_may_decide_how_tokens_are_drawn(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()

    async def greedy(task: Task, *, base_url: str, api_key: str) -> float:
        async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {api_key}"}) as client:
            body = {"messages": [user("a")], "temperature": 0}
            (await client.post(f"{base_url}/chat/completions", json=body, timeout=60)).raise_for_status()
        return 1.0

    async with runner_of(monkeypatch, greedy, engine, sampling_of=sampling) as runner:
        result = await runner.run(task(), UUID(int=1))
    assert engine.requests[0].sampling.temperature == (0.0 if sampling == "request" else 1.0)
    if sampling == "request":
        with pytest.raises(RolloutError, match="temperature 0"):
            result.check_trainable()
    else:
        result.check_trainable()


async def test_a_program_that_is_cancelled_gets_no_more_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on, and learns from the first call that its rollout is over."""
    engine = ScriptedEngine(hold=True)
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def deaf(task: Task, *, base_url: str, api_key: str) -> None:
        try:
            asks("a", base_url, api_key)
        except urllib.error.HTTPError as error:
            told.get_loop().call_soon_threadsafe(told.set_result, error.code)

    async with runner_of(monkeypatch, deaf, engine) as runner:
        running = asyncio.ensure_future(runner.run(task(), UUID(int=1)))
        await engine.until(lambda held: held.running == 1)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert engine.running == 0
        assert await told == 401


def test_an_agent_that_nobody_registered_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"unknown agent 'nobody'"):
        AgentProgramWorkflow.check_arguments(agent="nobody")
    with pytest.raises(ConfigError, match="takes no argument 'agents'"):
        WORKFLOWS.check_arguments("agent_program_workflow", {"agents": "nobody"})
