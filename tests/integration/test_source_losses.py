"""A loss and an agent of Python files, in real training: figures equal the registered ones', and files never matter."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.torch_world import torch_files
from synthetic.log.log_reading import read_decoded

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.log import EventLog

TORCH = (
    "model={model_path: ./model, max_model_len: 48, max_prompt_tokens: 32, max_response_tokens: 6}",
    "explorer={eval_interval: 1000, eval_on_startup: false, runner_per_model: 8, max_timeout: 60}",
    "explorer.rollout_model={engine_type: torch, engine_num: 1}",
    "trainer={trainer_type: torch, save_interval: 3, max_idle_steps: 0}",
    "algorithm.optimizer={lr: 0.003}",
    "buffer.total_steps=3",
    "stages=[{stage_name: rft}]",
)
LOSS = """
def weighted(logprobs, old_logprobs, advantages, factor):
    weight = (logprobs - old_logprobs).clamp(-20, 20).detach().exp().clamp(max=1.02)
    return -factor * advantages * weight * logprobs, {"factor": factor}
"""
AGENT = """
import json
import urllib.request

def asked(task, base_url, api_key):
    words = json.dumps({"model": "any", "messages": [{"role": "user", "content": task.prompt}]}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", words, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
        text = json.load(reply)["choices"][0]["message"]["content"] or ""
    return {"characters": float(len(text))}
"""


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    torch_files(tmp_path)
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def events(desk: ForkDesk, experiment: UUID) -> tuple[list[ExperienceProduced], list[StepCompleted]]:
    """The rollouts and steps of an experiment, in the order of their partitions."""
    events = [record.event for record in await read_decoded(desk.log, experiment=experiment)]
    return (
        [event for event in events if isinstance(event, ExperienceProduced)],
        [event for event in events if isinstance(event, StepCompleted)],
    )


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_loss_of_a_file_trains_as_the_registered_formula(desk: ForkDesk, fake_world) -> None:
    (desk.folder / "losses.py").write_text(LOSS)
    async with desk.open() as supervisor:
        weights = []
        own = ("algorithm.policy_loss_fn=./losses.py:weighted", "algorithm.policy_loss_fn_args={factor: 1.0}")
        for name, chosen in (("own", own), ("registered", ("algorithm.policy_loss_fn=reinforce",))):
            experiment = await desk.hand_in(supervisor, *TORCH, *chosen, f"name={name}")
            (desk.folder / "losses.py").write_text("raise AssertionError('a changed file is never read')")
            await desk.completed(experiment)
            _, steps = await events(desk, experiment)
            weights.append([(step.step, step.checksum) for step in steps])
            if name == "own":
                assert all(step.metrics["actor/factor"] == pytest.approx(1.0) for step in steps)
    assert len(weights[0]) == 3
    assert weights[0] == weights[1]
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_agent_of_a_file_is_trained_by_the_answers_that_it_received(desk: ForkDesk, fake_world) -> None:
    (desk.folder / "agents.py").write_text(AGENT)
    taskset = "buffer.explorer_input.taskset"
    chosen = (
        f"{taskset}.default_workflow_type=agent_program_workflow",
        f"{taskset}.workflow_args.agent=./agents.py:asked",
    )
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *TORCH, *chosen)
        (desk.folder / "agents.py").unlink()
        await desk.completed(experiment)
    rollouts, steps = await events(desk, experiment)
    assert len(steps) == 3
    assert len(rollouts) >= 3 * 16
    assert all(rollout.reward == rollout.metrics["characters"] for rollout in rollouts)
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
