"""What explorers get of the torch trainer's weights: the dtype that they run the model in, where that is bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, RolloutSpec
from rftd.workers.engines.learner.snapshot import TorchSnapshot, rounded_for
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.weights.checksum import checksum, form_of
from rftd.workers.weights.torch_bytes import tensors_of

Make = Callable[..., TrainBatch]


@pytest.fixture
def engine_for(tiny_model: Path, make_stage: Make, make_batch: Make) -> Callable[..., TorchTrainerEngine]:
    """An engine after a step, whose explorers run the model in a dtype."""

    def make(dtype: str, lora: LoraSpec | None = None, publish: str = "merged") -> TorchTrainerEngine:
        stage = make_stage()
        stage = msgspec.structs.replace(
            stage,
            rollout=RolloutSpec(dtype=dtype),
            model=msgspec.structs.replace(stage.model, lora=lora),
            trainer=msgspec.structs.replace(stage.trainer, engine_args={"lora_publish": publish} if lora else {}),
        )
        engine = TorchTrainerEngine(threads=1)
        spec = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={})
        engine.open(spec, str(tiny_model))
        engine.begin_stage(stage)
        engine.train(make_batch(1))
        return engine

    return make


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)], ids=["whole", "merged adapter"])
def test_explorers_in_bfloat16_get_half_the_bytes_and_the_same_model(
    engine_for: Callable[..., TorchTrainerEngine], tiny_model: Path, lora: LoraSpec | None
) -> None:
    engine = engine_for("bfloat16", lora)
    snapshot = engine.snapshot()
    rounded = tensors_of(snapshot.weights())
    assert not snapshot.exact
    assert {tensor.dtype for tensor in rounded.values()} == {torch.bfloat16}
    whole = engine.tensors()
    assert sum(each.nbytes for each in rounded.values()) * 2 == sum(each.nbytes for each in whole.values())
    networks = [Network.load(str(tiny_model), max_len=64, dtype="bfloat16") for _ in range(2)]
    for network, tensors in zip(networks, (rounded, whole), strict=True):
        network.assign(network.verified(tensors))
    one, two = (network.model.state_dict() for network in networks)
    assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize(
    ("dtype", "lora"), [("float32", None), ("float16", None), ("bfloat16", LoraSpec(rank=4))], ids=str
)
def test_others_get_what_was_trained(
    engine_for: Callable[..., TorchTrainerEngine], dtype: str, lora: LoraSpec | None
) -> None:
    """float16 has too small a range, and an adapter's sum with its base is rounded, not the adapter."""
    engine = engine_for(dtype, lora, publish="adapter")
    snapshot = engine.snapshot()
    assert snapshot.exact
    assert checksum(snapshot.weights()) == engine.checksum()


def test_numbers_that_transformers_keeps_in_float32_are_not_rounded(
    engine_for: Callable[..., TorchTrainerEngine],
) -> None:
    engine = engine_for("bfloat16")
    model = engine._model
    model._keep_in_fp32_modules_strict = {"norm"}
    model.register_buffer("count", torch.ones(3))
    tensors = engine.tensors() | {"count": torch.ones(3)}
    rounded = rounded_for(engine._experiment, model, tensors)
    assert rounded
    assert not [name for name in rounded if "norm" in name or name == "count"]
    tied = {"one": tensors["model.norm.weight"], "two": tensors["model.norm.weight"]}
    copies = TorchSnapshot.of(tied, rounded=frozenset()).weights()
    assert copies["one"] is copies["two"]


def test_a_trainer_tells_its_weights_in_the_form_of_whoever_recorded_them(
    engine_for: Callable[..., TorchTrainerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for("float32")
    weights = engine.snapshot().weights()
    assert engine.digest_like(engine.checksum()) == engine.checksum() == checksum(weights)
    assert engine.digest_like(engine.sha256()) == engine.sha256()
    assert form_of(engine.sha256()) == "tensors"
    assert engine.digest_like("0" * 64) == checksum(weights), "of another engine's making, which no digest here equals"
    monkeypatch.setattr(TorchTrainerEngine, "_form", "bits")  # as on a device
    assert form_of(engine.checksum()) == "bits"
    assert engine.digest_like("0" * 32) == checksum(weights)
