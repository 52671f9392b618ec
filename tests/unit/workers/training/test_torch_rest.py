"""A trainer that rests between its steps leaves its memory to others, and its weights are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.ops.errors import DeviceMemoryError
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, StageSpec
from rftd.workers.engines.torch.trainer import engine as engines
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import RestingEngine, TrainBatch
from rftd.workers.weights import checksum, tensor_digests
from rftd.workers.weights.parked_tensors import ParkedTensors

MakeBatch = Callable[..., TrainBatch]


def opened(folder: Path, stage: StageSpec, *, parks: bool) -> TorchTrainerEngine:
    engine = TorchTrainerEngine(threads=1)
    spec = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=True, config={})
    engine.open(spec, str(folder))
    engine._rest.possible = parks  # a CPU's memory is the host's: here it is parked there all the same
    engine.begin_stage(stage)
    return engine


@pytest.fixture(autouse=True)
def memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that can be given up: on a CPU a model is mapped from its file, bytes are read in place, and cannot."""
    load_model = engines.load_model
    memory = tensor_digests.memory

    def copied(*args: Any, **options: Any) -> Any:
        model = load_model(*args, **options)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
        return model

    monkeypatch.setattr(engines, "load_model", copied)
    monkeypatch.setattr(tensor_digests, "memory", lambda tensor: memory(tensor.clone()))


@pytest.fixture(params=["whole", "adapter"])
def stage(request: pytest.FixtureRequest, make_stage: Callable[..., StageSpec]) -> StageSpec:
    stage = make_stage(kl_coef=0.1)
    if request.param == "whole":
        return stage
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    lora = LoraSpec(rank=4, alpha=8.0)
    return msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))


def test_steps_with_rests_between_them_are_those_without(
    tiny_model: Path, stage: StageSpec, make_batch: MakeBatch, tmp_path: Path
) -> None:
    engine = opened(tiny_model, stage, parks=True)
    plain = opened(tiny_model, stage, parks=False)
    assert isinstance(engine, RestingEngine)
    for step in (1, 2, 3):
        for each in (engine, plain):
            each.wake()
            each.train(make_batch(step))
            each.rest()
        for parameter in engine._model.parameters():
            assert parameter.untyped_storage().nbytes() == 0, "its memory is somebody else's now"
        assert engine.checksum() == plain.checksum()
        assert engine.sha256() == plain.sha256()
        assert engine.digest_like("bits:") == plain.digest_like("bits:")
        assert checksum.checksum(engine.snapshot().weights()) == plain.checksum()
    engine.save(tmp_path / "rested", hf=True)
    plain.save(tmp_path / "plain", hf=True)
    files = sorted(path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*") if path.is_file())
    assert any(path.name == "optimizer.safetensors" for path in files)
    for path in files:
        assert (tmp_path / "rested" / path).read_bytes() == (tmp_path / "plain" / path).read_bytes(), path
    assert next(engine._model.parameters()).untyped_storage().nbytes() == 0, "after it was saved it rests again"
    engine.load(tmp_path / "plain", stage)
    engine.train(make_batch(4))
    plain.train(make_batch(4))
    assert engine.checksum() == plain.checksum()


def test_memory_that_others_have_is_an_error_that_says_so_and_nothing_is_lost(
    tiny_model: Path, stage: StageSpec, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(tiny_model, stage, parks=True)
    engine.train(make_batch())
    before = engine.checksum()
    engine.rest()
    back = ParkedTensors.back

    def full(parked: ParkedTensors) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(ParkedTensors, "back", full)
    with pytest.raises(DeviceMemoryError, match="rested on the host: CUDA out of memory"):
        engine.wake()
    monkeypatch.setattr(ParkedTensors, "back", back)
    engine.wake()
    engine._weights_changed()
    assert engine.checksum() == before
