"""Trainer and rollouts on torch in one process: neither disturbs the other, and the weights are found again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from rftd.daemon.supervisor.run import Run
from rftd.ops.logs import logger
from rftd.streams.backends.sqlite.log import SqliteLog
from rftd.streams.folds.spine import Status
from rftd.streams.spec import ExperimentSpec, LoraSpec, ModelSpec, RolloutSpec, TrainerSpec, UpdatesSpec
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training.engines.registry import make_engine
from rftd.workers.training.record import read_record
from rftd.workers.training.rerun import Rerun

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rollouts in bfloat16": {"dtype": "bfloat16"},
    "merged adapter": {"lora": LoraSpec(rank=4), "engine_args": {"lora_publish": "merged"}},
    "adapter alone": {"lora": LoraSpec(rank=4), "engine_args": {"lora_publish": "adapter"}},
    "critic": {"advantage": "ppo", "critic_warmup_steps": 2, "engine_args": {"critic_lr": 1e-3}},
    "teacher": {"advantage": "on_policy_distill"},
    "several steps": {"updates": UpdatesSpec(epochs=2, mini_batch_items=2, shuffle=True)},
}


def spec_of(folder: Path, fake_world: Any, variant: dict[str, Any]) -> ExperimentSpec:
    """The fake runs' stages with the torch engines, and what the variant says."""
    model = make_tiny_model(folder / "model", seed=3, hidden_size=32, heads=2)
    teacher = make_tiny_model(folder / "teacher", seed=4, hidden_size=32, heads=2)
    engines = {
        "rollout": RolloutSpec(
            engine="torch", concurrency=8, max_timeout_s=60.0, dtype=variant.get("dtype", "float32")
        ),
        "trainer": TrainerSpec(
            engine="torch",
            save_interval=4,
            engine_args=variant.get("engine_args", {}),
            critic_warmup_steps=variant.get("critic_warmup_steps", 0),
            teacher_path=str(teacher),
            updates=variant.get("updates", UpdatesSpec()),
        ),
        "model": ModelSpec(
            path=str(model),
            max_model_len=32,
            max_prompt_tokens=16,
            max_response_tokens=8,
            lora=variant.get("lora"),
        ),
    }
    spec: ExperimentSpec = fake_world.spec(folder)
    stages = tuple(msgspec.structs.replace(stage, **engines) for stage in spec.stages)
    if "advantage" in variant:
        stages = tuple(
            msgspec.structs.replace(
                stage, algorithm=msgspec.structs.replace(stage.algorithm, advantage=variant["advantage"])
            )
            if stage.kind == "both"
            else stage
            for stage in stages
        )
    return msgspec.structs.replace(spec, stages=stages)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.anyio
async def test_both_engines_in_one_process(tmp_path: Path, clock, ids, fake_world, variant: str) -> None:
    spec, switched = spec_of(tmp_path, fake_world, VARIANTS[variant]), torch.are_deterministic_algorithms_enabled()
    log = await SqliteLog.open(tmp_path / "log")
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(100):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    assert [handle.exit_code() for handle in executor.handles if handle.exit_code()] == [], "a worker failed"
    assert torch.are_deterministic_algorithms_enabled() == switched, "the trainer's switch is put back"
    published = run.state.weights.published.values()
    assert published
    assert {bool(event.trained) for event in published} == {variant == "rollouts in bfloat16"}
    assert (await fake_world.verified(log)).clean
    record = await read_record(log, experiment, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, make_engine(spec.stages[0].trainer), thread=thread)
        await again.take_up(at_most=0)
        compared = [await again.step(number) for number in range(1, again.last + 1)]
    assert [each.equal for each in compared] == [True] * 8
    await log.close()
