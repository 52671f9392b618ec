"""Workflows that sample in their own way, trained by the real engines: what was really used is what is trained."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from synthetic.daemon.third_party import install
from synthetic.log.log_reading import read_decoded
from transformers import AutoModelForCausalLM

from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, RunStep
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, RolloutSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training.record import read_record
from rftd.workers.training.rerun import Rerun

OWN_SAMPLING = '''
from msgspec.structs import replace
from rftd.workers.generation.response import Response
from rftd.workers.workflows.simple import SimpleWorkflow
from rftd.workers.workflows.trajectory import Trajectory, one_turn

class OwnSampling(SimpleWorkflow):
    """Two turns, each at a temperature of its own: one conversation, or two steps."""
    def __init__(self, temperatures=(), top_p=1.0, apart=False):
        self.temperatures, self.top_p, self.apart = temperatures, top_p, apart

    async def run(self, task, model, reward):
        prompt, conversation, steps = self.prompt(task, model, reward), Trajectory(), []
        for temperature in self.temperatures:
            told = [*conversation.tokens, *prompt] if conversation.tokens and not self.apart else prompt
            sampling = replace(model.sampling, temperature=temperature, top_p=self.top_p)
            response = await model.generate(told, sampling=sampling)
            conversation.add(response) if not self.apart else None
            score = await reward.score(response.text, task)
            steps.append(one_turn(response, score))
        return steps if self.apart else conversation.result(score)
'''
LENGTHS = '''
class Lengths:
    """Tells most answers apart."""
    def score(self, response, truth, task):
        return float(len(response) % 5)
'''
COLD = 0.6
HOT = 1.4


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    opened = await SqliteLog.open(tmp_path / "log")
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def own_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third party's workflow by the name `own_sampling`, and a reward `lengths`."""
    points = {
        "rftd.workflows": {"own_sampling": "own_sampling:OwnSampling"},
        "rftd.rewards": {"lengths": "own_sampling:Lengths"},
    }
    install(tmp_path, "own_sampling", OWN_SAMPLING + LENGTHS, points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_sampling", raising=False)


def spec_of(folder: Path, fake_world: Any, **workflow_args: Any) -> ExperimentSpec:
    """The GRPO stage alone, on the torch engines, with a model that is sure of itself; the taskset says 1.0."""
    model = make_tiny_model(folder / "model", seed=3, hidden_size=32, heads=2)
    weights = model / "model.safetensors"
    save_file({name: value * (6 if "embed" in name else 1) for name, value in load_file(weights).items()}, weights)
    stage = fake_world.spec(folder).stages[1]
    taskset = msgspec.structs.replace(
        stage.taskset, reward="lengths", workflow="own_sampling", workflow_args=workflow_args
    )
    stage = msgspec.structs.replace(
        stage,
        taskset=taskset,
        total_steps=2,
        evals=(),
        rollout=RolloutSpec(engine="torch", concurrency=8, max_timeout_s=60.0, max_retry_times=0),
        trainer=TrainerSpec(engine="torch", save_interval=4),
        model=ModelSpec(path=str(model), max_model_len=48, max_prompt_tokens=32, max_response_tokens=8),
    )
    assert stage.taskset.sampling.temperature == 1.0
    spec: ExperimentSpec = fake_world.spec(folder)
    return msgspec.structs.replace(spec, stages=(stage,))


async def events(log: EventLog, stream: str) -> list[Any]:
    return [record.event for record in await read_decoded(log, stream)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "arguments",
    [{"temperatures": [COLD]}, {"temperatures": [COLD, HOT]}, {"temperatures": [HOT, COLD], "apart": True}],
    ids=["one turn", "turns", "steps"],
)
async def test_the_first_step_is_on_policy_and_a_replay_gives_the_same_weights(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, arguments: dict[str, Any]
) -> None:
    spec = spec_of(tmp_path, fake_world, **arguments)
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    first = next(each for each in await events(log, topics.EXPERIMENTS) if isinstance(each, StepCompleted))
    assert first.step == 1
    assert first.tokens > 50
    assert first.metrics["actor/pg_clipfrac"] == 0.0
    assert abs(first.metrics["actor/ppo_kl"]) < 1e-4
    produced = [each for each in await events(log, topics.EXPERIENCES) if isinstance(each, ExperienceProduced)]
    assert len({each.reward for each in produced}) > 2, "nothing could be clipped"
    for each in produced:
        assert [span.temperature for span in each.sampling] == arguments["temperatures"]
        assert (each.sampling[0].start, each.sampling[-1].end) == (0, len(each.loss_mask))
    record = await read_record(log, run.state.experiment, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, make_engine(spec.stages[0].trainer), thread=thread)
        await again.take_up(at_most=0)
        assert [(await again.step(number)).equal for number in (1, 2)] == [True, True]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "arguments", [{"temperatures": [COLD, HOT]}, {"temperatures": [HOT, COLD], "apart": True}], ids=["turns", "steps"]
)
async def test_processed_logprobs_are_those_of_the_kept_tokens(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, arguments: dict[str, Any]
) -> None:
    """The stored ones are compared with float64 over the whole vocabulary; the step says how far the raw ones are."""
    top_p = 0.7
    spec = spec_of(tmp_path, fake_world, top_p=top_p, **arguments)
    (stage,) = spec.stages
    sampling = msgspec.structs.replace(stage.taskset.sampling, processed_logprobs=True)
    taskset = msgspec.structs.replace(stage.taskset, sampling=sampling)
    spec = msgspec.structs.replace(spec, stages=(msgspec.structs.replace(stage, taskset=taskset),))
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    produced = [each for each in await events(log, topics.EXPERIENCES) if isinstance(each, ExperienceProduced)]
    model = AutoModelForCausalLM.from_pretrained(stage.model.path, dtype=torch.float64).eval()
    gaps = []
    narrowed = 0
    for each in produced:
        if {span.version for span in each.spans} != {0}:
            continue
        heat = np.concatenate([np.full(span.end - span.start, span.temperature) for span in each.sampling])
        place = token_place = 0
        assert each.processed_logprobs is not None
        processed = each.processed_logprobs.view()
        raw = each.logprobs.view()
        for step in each.steps or (RunStep(len(each.tokens.view()), each.prompt_tokens, 0.0),):
            tokens = torch.from_numpy(each.tokens.view()[token_place : token_place + step.tokens].astype(np.int64))
            with torch.no_grad():
                logits = model(tokens[None]).logits[0]
            for at in range(step.prompt_tokens, step.tokens):
                if each.loss_mask.view()[place]:
                    shares = torch.softmax(logits[at - 1] / heat[place], -1)
                    ordered, order = shares.sort(descending=True)
                    kept = order[ordered.cumsum(-1) - ordered < top_p]
                    mass = float(shares[kept].sum())
                    assert tokens[at] in kept
                    assert abs(raw[place] - float(shares[tokens[at]].log())) < 1e-4
                    assert abs(processed[place] - float((shares[tokens[at]] / mass).log())) < 1e-4
                    narrowed += mass < 0.99
                    gaps.append(float(processed[place] - raw[place]))
                place += 1
            token_place += step.tokens
    assert narrowed > 20, "nothing was cut off"
    completed = [each for each in await events(log, topics.EXPERIMENTS) if isinstance(each, StepCompleted)]
    assert all(0 < each.metrics["rollout/processed_minus_raw/mean"] <= -math.log(top_p) + 1e-6 for each in completed)
    if completed[0].tokens == len(gaps):
        assert completed[0].metrics["rollout/processed_minus_raw/mean"] == pytest.approx(np.mean(gaps), abs=1e-5)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"temperatures": [0.0]}, "response token 0, which is trained, was drawn at temperature 0"),
        ({"temperatures": [1.0, 0.001]}, "which is trained, was drawn at temperature 0.001"),
        ({"temperatures": [float("nan")]}, "a response was requested with temperature nan"),
        ({"temperatures": [-1.0]}, "a response was requested with temperature -1.0"),
        ({"temperatures": [1.0], "top_p": 0.0}, "a response was requested with top_p 0.0"),
    ],
    ids=["greedy", "too cold", "nan", "negative", "top_p"],
)
async def test_what_cannot_be_trained_fails_its_rollouts_and_no_worker(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, arguments: dict[str, Any], says: str
) -> None:
    executor = fake_world.executor(log, clock, ids)
    run = await fake_world.run(log, spec_of(tmp_path, fake_world, **arguments), clock, ids, executor)
    async with asyncio.timeout(60):
        await run.drive()
    failed = [each for each in await events(log, topics.EXPERIENCES) if isinstance(each, RolloutFailed)]
    assert failed, failed[0].reason
    assert all(says in each.reason and "fix: use a" in each.reason for each in failed), failed[0].reason
    assert run.state.spine.status is Status.FAILED
    assert says in run.state.spine.reason
    assert [handle.exit_code() for handle in executor.handles if handle.exit_code()] == [], "a worker failed"
