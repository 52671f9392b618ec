"""Classes of Trinity-RFT, unchanged, train a real model with the figures of rftd's own workflows, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.torch_world import torch_files
from synthetic.log.log_reading import read_decoded
from synthetic.worlds.trinity_classes import NATIVE, PAIRS

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.log import EventLog
from rftd.workers.models.tiny_model import make_tiny_model

TORCH = (
    "model={model_path: ./model, max_model_len: 48, max_prompt_tokens: 32, max_response_tokens: 6}",
    "explorer={eval_interval: 1000, eval_on_startup: false, runner_per_model: 8, max_timeout: 60}",
    "explorer.rollout_model={engine_type: torch, engine_num: 1}",
    "trainer={trainer_type: torch, save_interval: 3, max_idle_steps: 0}",
    "algorithm.optimizer={lr: 0.003}",
    "buffer.total_steps=3",
    "stages=[{stage_name: rft}]",
)
JUDGE = "explorer.auxiliary_models=[{name: judge, model_path: ./judge, max_model_len: 160, max_response_tokens: 8}]"
TASKSET = "buffer.explorer_input.taskset"


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def figures(desk: ForkDesk, experiment: UUID) -> tuple[list[Any], list[Any]]:
    """Every rollout with its tokens and reward, and the weights and figures of every step."""
    rollouts: list[Any] = []
    steps: list[Any] = []
    for record in await read_decoded(desk.log, experiment=experiment):
        event = record.event
        if isinstance(event, ExperienceProduced):
            arrays = [msgspec.msgpack.encode(array) for array in (event.tokens, event.loss_mask, event.logprobs)]
            rollouts.append((*arrays, event.reward, event.prompt_tokens, event.turns))
        elif isinstance(event, StepCompleted):
            steps.append((event.step, event.checksum, event.metrics.get("loss"), event.metrics.get("reward")))
    return sorted(rollouts), sorted(steps)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("kind", PAIRS)
async def test_an_unchanged_class_trains_as_a_native_workflow(desk: ForkDesk, fake_world, kind: str) -> None:
    text, name, native = PAIRS[kind]
    torch_files(desk.folder)
    make_tiny_model(desk.folder / "judge", seed=9, hidden_size=32, heads=2)
    (desk.folder / "theirs.py").write_text(text)
    (desk.folder / "ours.py").write_text(NATIVE)
    changes = (*TORCH, JUDGE) if kind == "auxiliary" else TORCH
    async with desk.open() as supervisor:
        seen = []
        for workflow in (f"./theirs.py:{name}", f"./ours.py:{native}"):
            chosen = f"{TASKSET}.default_workflow_type={workflow}"
            experiment = await desk.hand_in(supervisor, *changes, chosen, f"name={workflow[2:6]}")
            await desk.completed(experiment)
            seen.append(await figures(desk, experiment))
    theirs, ours = seen
    assert len(ours[0]) >= 3 * 16
    assert len(ours[1]) == 3
    assert len({rollout[3] for rollout in ours[0]}) > 1, "rewards that differ"
    assert theirs == ours
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
