"""The torch engines on a real GPU: what they promise anywhere, and what only a GPU can show.

Skipped without one. `RFTD_TEST_DEVICE=cuda` puts `test_trainer_engine` and `test_rollout_engine` there as well.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.engine_parity import ParityBench, all_cases, distance, make_models
from torch.nn import functional

from rftd.ops.clock import SystemClock
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, StageSpec
from rftd.workers.engines.contract.rollout.bench import EngineBench, ask, opened, until
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch, trained
from rftd.workers.engines.torch.rollout import attention
from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.bit_sums import ROW_WORDS, BitSums
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.registry import Channels
from rftd.workers.weights.torch_bytes import bytes_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CUDA: dict[str, Any] = {"device": "cuda"}
GPU = torch.device("cuda")
HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TrainerBench]:
    made = TrainerBench("torch", tmp_path, arguments=CUDA)
    yield made
    made.close()


@pytest.fixture(params=["float32", "bfloat16"])
async def rollouts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EngineBench]:
    async with opened("torch", tmp_path, arguments=CUDA, dtype=request.param) as made:
        yield made


def torch_engine(bench: TrainerBench, stage: StageSpec) -> TorchTrainerEngine:
    engine = bench.opened(stage)
    assert isinstance(engine, TorchTrainerEngine)
    return engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.int32], ids=str)
def test_a_device_sums_the_bits_that_the_host_sums(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = (1, 7, ROW_WORDS, 3 * ROW_WORDS + 5, 70 * ROW_WORDS + 1)
    tensors = {str(n): (torch.randn(n, generator=generator) * 100).to(dtype) for n in sizes}
    tensors["turned"] = torch.randn(300, 500, generator=generator).to(dtype).T
    there = {name: tensor.to(GPU) for name, tensor in tensors.items()}
    assert BitSums(GPU).digests(there) == BitSums(HOST).digests(tensors)


def test_the_bytes_of_a_device_are_those_of_the_host() -> None:
    table = torch.randn(70, 9)
    tensors = {
        "table": table,
        "tied": table,
        "part": table[3:5],
        "turned": table.T,
        "half": table.bfloat16(),
        "none": torch.empty(0, 3),
        "one": torch.tensor(5),
    }
    on_device = table.to(GPU)
    there = {name: tensor.to(GPU) for name, tensor in tensors.items()}
    there |= {"table": on_device, "tied": on_device.view(70, 9), "part": on_device[3:5], "turned": on_device.T}
    found = bytes_of(there)
    expected = bytes_of(tensors)
    assert {name: bytes(each.data) for name, each in found.items()} == {
        name: bytes(each.data) for name, each in expected.items()
    }
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
        name: (each.dtype, each.shape) for name, each in expected.items()
    }
    assert found["table"] is found["tied"]
    assert found["table"] is not found["part"]


def test_snapshots_and_digests_are_those_of_the_weights(bench: TrainerBench) -> None:
    stage = bench.stage()
    engine = torch_engine(bench, stage)
    trained(engine, stage, range(1, 3))
    weights = {name: tensor.cpu() for name, tensor in engine.tensors().items()}
    assert {tensor.device.type for tensor in engine.tensors().values()} == {"cuda"}
    assert checksum(engine.snapshot().weights()) == checksum(bytes_of(weights))
    assert engine.digest_like("0" * 32) == checksum(bytes_of(weights))
    there = engine.checksum()
    engine.rest()
    assert engine.checksum() == there
    engine._digests.clear()
    assert engine.checksum() == there, "of what rests on the host"
    engine.wake()
    engine._digests.clear()
    assert engine.checksum() == there


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4, alpha=8.0)], ids=["whole", "adapter"])
def test_a_trainer_at_rest_leaves_its_memory_and_goes_on_as_if_it_had_not(
    bench: TrainerBench, lora: LoraSpec | None
) -> None:
    stage = bench.stage()
    stage = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))
    resting, other = torch_engine(bench, stage), torch_engine(bench, stage)
    for engine in (resting, other):
        engine.begin_stage(stage)
        engine.train(make_batch(1))
    before = resting.checksum()
    held_bytes = torch.cuda.memory_allocated()
    resting.rest()
    assert torch.cuda.memory_allocated() < held_bytes
    resting.wake()
    assert resting.checksum() == before
    for engine in (resting, other):
        engine.train(make_batch(2))
    assert resting.checksum() == other.checksum()


def test_every_algorithm_makes_equal_weights_twice(tmp_path: Path) -> None:
    """In every bit, in whatever order kernels run, so that `rftd replay` has something to compare."""
    there = ParityBench("torch", make_models(tmp_path), tmp_path / "there", CUDA)
    for case in all_cases([8192, 24]):
        for dtype in ("float32", "bfloat16"):
            typed = replace(case, dtype=dtype)
            found = distance(there.run(typed), there.run(typed))
            assert (found.loss, found.norm, found.weights) == (0.0, 0.0, 0.0), typed
    assert there.engine.environment()["deterministic_algorithms"] == "true", "no kernel was without such a form"
    there.engine.close()


@pytest.mark.parametrize("layers", ["kept", "recomputed"])
def test_every_algorithm_trains_as_on_the_host(tmp_path: Path, layers: str) -> None:
    """To rounding: float32 on both sides, with sums in another order."""
    model = make_models(tmp_path)
    host = ParityBench("torch", model, tmp_path / "host", {"device": "cpu"})
    there = ParityBench("torch", model, tmp_path / "there", {**CUDA, "gradient_checkpointing": layers == "recomputed"})
    apart = {}
    for case in all_cases([8192, 24]):
        found = distance(host.run(case), there.run(case))
        if found.loss > 1e-4 or found.norm > 1e-3 or found.weights > 1e-3:
            apart[f"{case.algorithm}-{case.budget_tokens}-{case.updates.epochs}"] = found
    assert not apart


def test_prompts_are_attended_to_without_all_scores_at_once() -> None:
    """Of 12 heads and 8192 tokens they would take 1.5 GiB in bfloat16; keys that heads share are no reason."""
    heads, groups, tokens, size = 12, 2, 8192, 128
    query = torch.randn(1, heads, tokens, size, dtype=torch.bfloat16, device=GPU)
    key, value = torch.randn(2, 1, groups, tokens, size, dtype=torch.bfloat16, device=GPU)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=GPU).triu(1)
    mask = (hidden * attention.masked(torch.bfloat16)).to(torch.bfloat16)[None, None]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    found, _ = attention.attend(torch.nn.Module(), query, key, value, mask)
    assert torch.cuda.max_memory_allocated() - before_bytes < 1 << 29
    repeated = [each.repeat_interleave(heads // groups, 1)[:, :3].float() for each in (key, value)]
    right = functional.scaled_dot_product_attention(query[:, :3].float(), *repeated, is_causal=True)
    torch.testing.assert_close(found[:, :, :3].float(), right.transpose(1, 2), atol=2e-2, rtol=2e-2)


@pytest.mark.anyio
async def test_decode_steps_are_recorded(rollouts: EngineBench) -> None:
    engine = await rollouts.ready()
    assert isinstance(engine, TorchRolloutEngine)
    await engine.generate(ask(max_tokens=40, min_tokens=40))
    batch: Any = engine._loop._batch
    assert batch._fixed is not None
    assert batch._fixed.shapes


@pytest.mark.anyio
async def test_new_weights_are_on_the_device_before_decoding_stands_still(rollouts: EngineBench) -> None:
    """And afterwards they draw what an engine draws that never had others."""
    engine = await rollouts.ready()
    assert isinstance(engine, TorchRolloutEngine)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate(ask(i, seed=i, max_tokens=90, min_tokens=90))) for i in range(4)]
        await until(lambda: engine.stats().running > 0 or all(task.done() for task in tasks))
        await rollouts.load(1)
    assert engine._network._incoming is not None
    changed = await engine.generate(ask(temperature=0.0))
    await rollouts.load(0)
    other = await engine.generate(ask(temperature=0.0))
    await rollouts.load(1)
    again = await engine.generate(ask(temperature=0.0))
    assert again.tokens == changed.tokens
    assert again.logprobs == pytest.approx(changed.logprobs, abs=1e-4)
    assert (other.tokens, other.logprobs) != (changed.tokens, changed.logprobs)


@pytest.mark.anyio
async def test_an_engine_at_rest_takes_new_weights_and_leaves_the_memory(rollouts: EngineBench) -> None:
    engine = await rollouts.ready()
    assert isinstance(engine, TorchRolloutEngine)
    await rollouts.load(1)
    expected = await engine.generate(ask(temperature=0.0))
    await rollouts.load(0)
    held_bytes = torch.cuda.memory_allocated()
    await engine.rest()
    assert torch.cuda.memory_allocated() < held_bytes
    await rollouts.load(1)
    await engine.wake()
    found = await engine.generate(ask(temperature=0.0))
    assert found.tokens == expected.tokens


@pytest.mark.anyio
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-8), ("bfloat16", 1e-3)])
async def test_engine_and_trainer_agree_on_what_was_drawn(tmp_path: Path, dtype: str, bound: float) -> None:
    model = make_tiny_model(tmp_path / "model", seed=1)
    bench = TrainerBench("torch", tmp_path, arguments=CUDA, model=model)
    stage = bench.stage()
    stage = msgspec.structs.replace(
        stage,
        model=msgspec.structs.replace(stage.model, path=str(model)),
        rollout=msgspec.structs.replace(stage.rollout, engine="torch", dtype=dtype, engine_args=CUDA),
        trainer=msgspec.structs.replace(stage.trainer, dtype=dtype),
    )
    trainer = torch_engine(bench, stage)
    trainer.begin_stage(stage)
    job = ExperimentSpec(project="p", name="n", job_dir=str(tmp_path / "job"), stages=(stage,), config={})
    engine = await open_engine(job, stage, slots=8, clock=SystemClock())
    channel = Channels(str(tmp_path / "job"), str(tmp_path)).of("memory")
    exported = channel.publish(trainer.snapshot().weights(), version=0, generation=0)
    ref = WeightsRef(
        version=0,
        generation=0,
        path=exported.path,
        manifest=exported.manifest,
        checksum=exported.checksum,
        method="memory",
        host=exported.host,
    )
    assert await engine.load_weights(ref) == exported.checksum
    asked = [ask(i, seed=i, max_tokens=30, min_tokens=30) for i in range(8)]
    drawn = await asyncio.gather(*map(engine.generate, asked))
    await engine.close()
    samples = [
        TrainSample(
            tokens=np.array([*request.prompt, *answer.tokens], np.uint32),
            prompt_tokens=len(request.prompt),
            loss_mask=np.ones(len(answer.tokens), np.uint8),
            logprobs=np.array(answer.logprobs, np.float32),
            advantages=np.full(len(answer.tokens), 1.0 - 2 * (number % 2), np.float32),
            group=0,
        )
        for number, (request, answer) in enumerate(zip(asked, drawn, strict=True))
    ]
    result = trainer.train(TrainBatch(step=1, stage_step=1, samples=samples))
    assert result.metrics["mismatch/k3/max"] < bound
    bench.close()
    gc.collect()


def test_a_checkpoint_of_the_device_goes_on_on_the_host(bench: TrainerBench, tmp_path: Path) -> None:
    stage = bench.stage()
    engine = torch_engine(bench, stage)
    trained(engine, stage, range(1, 4))
    folder = tmp_path / "saved"
    engine.save(folder, hf=False)
    on_host = msgspec.structs.replace(
        stage, trainer=msgspec.structs.replace(stage.trainer, engine_args={"device": "cpu"})
    )
    other = torch_engine(bench, on_host)
    other.load(folder, on_host)
    assert other.checksum() == engine.digest_like(other.checksum())
    figures = [each.train(make_batch(4)).metrics["actor/grad_norm"] for each in (engine, other)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-3)
