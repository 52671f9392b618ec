"""Trainer and rollouts on torch in one process: neither disturbs the other, and the weights are found again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from structlog.testing import capture_logs
from synthetic.until import until
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.daemon.cli.verbs.verify import files_of
from rftd.daemon.run.supervisor.orders import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.logs import logger
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.events.experiment import ExperimentCancelled
from rftd.streams.folds.spine import Status
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, ModelSpec, RolloutSpec, TrainerSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training import loop
from rftd.workers.training.record import read_record
from rftd.workers.training.rerun import Rerun
from rftd.workers.weights.checksum import form_of

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rollouts in bfloat16": {"dtype": "bfloat16"},
    "weights by links": {"method": "nccl"},
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
    if "method" in variant:
        stages = tuple(
            msgspec.structs.replace(
                stage, synchronizer=msgspec.structs.replace(stage.synchronizer, sync_method=variant["method"])
            )
            for stage in stages
        )
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
    with capture_logs() as lines:
        async with asyncio.timeout(100):
            await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    steps = [line for line in lines if line["event"] == "step.completed"]
    assert [line["step"] for line in steps] == list(range(1, 9))
    told = {"grad_norm", "response_length", "tokens_per_s"}
    assert [told - line.keys() for line in steps] == [set()] * 8
    # In the critic's warm-up its loss is the only one.
    assert [line["step"] for line in steps if "loss" not in line and "critic_loss" not in line] == []
    assert ["reward" in line for line in steps] == [False] * 3 + [True] * 5
    assert [handle.exit_code() for handle in executor.handles if handle.exit_code()] == [], "a worker failed"
    assert torch.are_deterministic_algorithms_enabled() == switched, "the trainer's switch is put back"
    published = run.state.weights.published.values()
    assert published
    if variant == "weights by links":
        # Those that are evaluated and the last are files in any case.
        assert {event.method for event in published} == {"nccl", "checkpoint"}
        assert {event.method for event in published if event.trained} == {"nccl"}
    else:
        assert {bool(event.trained) for event in published} == {variant == "rollouts in bfloat16"}
    assert (await fake_world.verified(log)).clean
    record = await read_record(log, experiment, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, make_engine(spec.stages[0].trainer), thread=thread)
        await again.take_up(at_most=0)
        compared = [await again.step(number) for number in range(1, again.last + 1)]
    assert [each.equal for each in compared] == [True] * 8
    await log.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_stays_of_a_cancelled_run_loads_and_is_kept_once(tmp_path: Path, clock, ids, fake_world) -> None:
    """Every checkpoint is a model of transformers, the reference is one file, and no published version is left."""
    spec = spec_of(tmp_path, fake_world, {})
    saves = msgspec.structs.replace(spec.stages[1].trainer, save_interval=1)
    compared = msgspec.structs.replace(spec.stages[1].algorithm, kl_loss="k2", kl_loss_args={"kl_coef": 0.1})
    rft = msgspec.structs.replace(spec.stages[1], trainer=saves, algorithm=compared, total_steps=200)
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], rft))
    log = await SqliteLog.open(tmp_path / "log")
    run = await fake_world.run(log, spec, clock, ids)
    saved = run.state.checkpoints
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        await until(lambda: len(saved) >= 4)
        await run.command(ExperimentCancelled(), Request(ids.new()))
    assert run.state.spine.status is Status.CANCELLED, run.state.spine.reason
    committed = list(saved.values())
    references = set()
    for each in committed:
        hf = Path(each.path) / "actor" / "huggingface"
        folder = hf if hf.is_dir() else hf.parent
        assert hf.is_dir() == each.final
        policy: Any = AutoModelForCausalLM.from_pretrained(folder)
        assert policy.dtype == torch.float32
        assert AutoTokenizer.from_pretrained(folder).decode([50])
        if each.stage == 1:
            references.add((Path(each.path) / "actor" / "reference.safetensors").stat().st_ino)
    assert len(committed) >= 4
    assert len(references) == 1
    assert list((Path(spec.job_dir) / "weights").glob("*")) == []
    report = await verify(log, look=files_of)
    assert report.clean, report.findings
    record = await read_record(log, run.state.experiment, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, make_engine(spec.stages[0].trainer), thread=thread)
        taken_up = await again.take_up(at_most=again.last)
        assert taken_up.checkpoint is not None
    archive = tmp_path / "x.rftd"
    await export_experiment(log, run.state.experiment, archive, release="1", clock=clock, checkpoints="all")
    (tmp_path / "job").rename(tmp_path / "gone")
    elsewhere = await SqliteLog.open(tmp_path / "elsewhere")
    await import_experiment(elsewhere, archive, home=tmp_path / "home", clock=clock)
    again_there = {path.stat().st_ino for path in (tmp_path / "home").rglob("reference.safetensors")}
    assert len(again_there) == 1
    for each in (elsewhere, log):
        await each.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_trainer_whose_checksums_were_made_on_a_device_goes_on_without_one(
    tmp_path: Path, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are compared, and its weights counted, by the form that each was recorded in."""
    spec = spec_of(tmp_path, fake_world, {})
    log = await SqliteLog.open(tmp_path / "log")
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    on_device = pytest.MonkeyPatch()
    on_device.setattr(TorchTrainerEngine, "_form", "bits")
    reached: list[str] = []

    def kill_trainer(name: str) -> None:
        reached.extend([name] if name == "trainer.before_step_append" else [])
        if len(reached) == 6 and not executor.handles[0].task.done():
            executor.handles[0].kill()
            on_device.undo()

    monkeypatch.setattr(loop.faults, "point", kill_trainer)
    try:
        async with asyncio.timeout(100):
            await run.drive()
    finally:
        on_device.undo()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    record = await read_record(log, experiment, clock=clock)
    forms = {step: form_of(done.checksum) for step, done in record.surviving().items()}
    assert forms[1] == "bits"
    assert forms[8] == "xxh3"
    published = run.state.weights.published
    assert {form_of(event.checksum) for event in published.values()} == {"xxh3"}, "what explorers compare"
    assert {form_of(event.step_checksum) for event in published.values()} == {"bits", "xxh3"}
    weights = run.state.weights
    assert all(weights.counts(*key, run.state.spine) for key in published if key not in weights.retired)
    assert (await fake_world.verified(log)).clean
    with ThreadPoolExecutor(1) as thread:
        again = Rerun(log, record, make_engine(spec.stages[0].trainer), thread=thread)
        await again.take_up(at_most=0)
        compared = [await again.step(number) for number in range(1, again.last + 1)]
    assert [each.equal for each in compared] == [True] * 8
    await log.close()
