"""A low-rank adapter in the torch engine: what learns, what explorers get, what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rftd.ops.errors import ConfigError, DataError, RolloutError
from rftd.streams.spec.spec import LoraSpec, StageSpec
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.models.pretrained import read_model

Make = Callable[..., StageSpec]
Open = Callable[[StageSpec], TorchTrainerEngine]
LORA = LoraSpec(rank=4, alpha=8)


def adapted(stage: StageSpec, lora: LoraSpec = LORA, publish: str = "merged") -> StageSpec:
    """The stage with an adapter."""
    trainer = msgspec.structs.replace(stage.trainer, engine_args={"lora_publish": publish})
    return msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora), trainer=trainer)


def base_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that the model's folder holds."""
    return dict(read_model(folder, dtype=torch.float32).named_parameters())


def test_a_fresh_adapter_changes_nothing_and_training_changes_adapted_weights_alone(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch], tiny_model: Path
) -> None:
    engine = open_engine(adapted(make_stage()))
    base = base_of(tiny_model)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    assert before.keys() == base.keys()
    assert all(torch.equal(before[name], base[name]) for name in base)
    for step in range(1, 4):
        engine.train(make_batch(step))
    after = engine.tensors()
    changed = {name for name in base if not torch.equal(after[name], base[name])}
    assert changed == {name for name in base if "_proj" in name and name.endswith("weight")}


def test_in_bfloat16_policy_and_reference_have_adapter_numbers_of_their_own(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch]
) -> None:
    """Autocast keeps its casts of weights within one context: one cast served both, and the KL was 0 for good."""
    divergences = {}
    for dtype in ("float32", "bfloat16"):
        engine = open_engine(adapted(make_stage(kl_coef=0.1, dtype=dtype)))
        divergences[dtype] = [engine.train(make_batch(step)).metrics["actor/kl_loss"] for step in (1, 2, 3, 4)]
    assert divergences["float32"][0] == divergences["bfloat16"][0] == 0.0
    assert divergences["bfloat16"][3] > 1e-6
    assert divergences["bfloat16"] == pytest.approx(divergences["float32"], rel=0.1)


def test_the_adapter_learns_what_the_whole_model_would_learn_from_the_same_gradient(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch]
) -> None:
    """The first step of A = 0-change: the loss falls, by the same log-probabilities."""
    whole, low = open_engine(make_stage("sft")), open_engine(adapted(make_stage("sft")))
    losses = [[engine.train(make_batch(1)).metrics["actor/final_loss"] for _ in range(12)] for engine in (whole, low)]
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-6)
    assert losses[1][-1] < losses[1][0] - 0.1


def test_explorers_get_the_same_network_from_merged_weights_and_from_the_adapter(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch], tiny_model: Path
) -> None:
    merged, alone = open_engine(adapted(make_stage())), open_engine(adapted(make_stage(), publish="adapter"))
    whole_network, network = (Network.load(str(tiny_model), max_len=64, dtype="float32") for _ in range(2))
    for step in range(1, 4):
        merged.train(make_batch(step))
        alone.train(make_batch(step))
        whole_network.assign(whole_network.verified(merged.tensors()))
        network.assign(network.verified(alone.tensors()))
        for name, value in whole_network.model.state_dict().items():
            torch.testing.assert_close(network.model.state_dict()[name], value, atol=1e-6, rtol=0)
    sizes = [sum(value.numel() for value in engine.tensors().values()) for engine in (merged, alone)]
    assert sizes[1] < sizes[0] / 2
    assert merged.checksum() != alone.checksum()


def test_an_adapter_of_another_model_is_refused_and_the_network_stays(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch], tiny_model: Path
) -> None:
    engine = open_engine(adapted(make_stage(), publish="adapter"))
    engine.train(make_batch(1))
    network = Network.load(str(tiny_model), max_len=64, dtype="float32")
    network.assign(network.verified(engine.tensors()))
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    odd = dict(engine.tensors())
    name = next(iter(odd))
    with pytest.raises(RolloutError, match="one of two"):
        network.verified({key: value for key, value in odd.items() if key != name})
    with pytest.raises(RolloutError, match="shapes"):
        network.verified({key: value[:, :-1] if key.endswith("lora_A") else value for key, value in odd.items()})
    with pytest.raises(RolloutError, match="differ in"):
        network.verified({f"other.{key}": value for key, value in odd.items()})
    assert all(torch.equal(before[key], value) for key, value in network.model.state_dict().items())


@pytest.mark.parametrize("hf", [False, True])
def test_a_checkpoint_resumes_to_equal_weights_and_loads_elsewhere(
    open_engine: Open,
    make_stage: Make,
    make_batch: Callable[..., TrainBatch],
    tmp_path: Path,
    tiny_model: Path,
    hf: bool,
) -> None:
    stage = adapted(make_stage(kl_coef=0.1))
    engine, resumed = open_engine(stage), open_engine(stage)
    for step in (1, 2):
        engine.train(make_batch(step))
    engine.save(tmp_path, hf=hf)
    saved = {name: value.clone() for name, value in engine.tensors().items()}
    engine.train(make_batch(3))
    resumed.load(tmp_path, stage)
    assert resumed.train(make_batch(3)).metrics["actor/kl_loss"] > 0
    assert resumed.checksum() == engine.checksum()
    assert not (tmp_path / "actor" / "model.safetensors").exists()
    import peft

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "actor" / "lora_adapter").merge_and_unload()
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(saved[name], value, atol=1e-6, rtol=0)
    if hf:
        found = base_of(tmp_path / "actor" / "huggingface")
        assert all(torch.equal(found[name], value) for name, value in saved.items())


def test_the_reference_is_the_policy_of_the_stages_beginning(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch]
) -> None:
    """Its KL is zero at first, equal to that of a whole copy after; the live adapter is back in place each time."""
    engine = open_engine(adapted(make_stage("sft")))
    for step in (1, 2):
        engine.train(make_batch(step))
    moved = engine.checksum()
    engine.begin_stage(adapted(make_stage(kl_coef=0.1)))
    assert engine.checksum() == moved
    assert engine.train(make_batch(3)).metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert engine.train(make_batch(4)).metrics["actor/kl_loss"] > 0


def test_an_adapter_goes_on_from_a_folder(
    open_engine: Open, make_stage: Make, make_batch: Callable[..., TrainBatch], tmp_path: Path
) -> None:
    engine = open_engine(adapted(make_stage()))
    engine.train(make_batch(1))
    engine.save(tmp_path, hf=False)
    path = str(tmp_path / "actor" / "lora_adapter")
    other = open_engine(adapted(make_stage(), LoraSpec(rank=4, alpha=8, path=path)))
    assert other.checksum() == engine.checksum()
    with pytest.raises(DataError, match="fit"):
        open_engine(adapted(make_stage(), LoraSpec(rank=8, path=path)))
    with pytest.raises(DataError, match="no adapter"):
        open_engine(adapted(make_stage(), LoraSpec(path=str(tmp_path))))


@pytest.mark.parametrize("modules", [("nothing_here",), ("embed_tokens",), ("lm_head",)])
def test_modules_that_cannot_be_adapted_are_refused(
    open_engine: Open, make_stage: Make, modules: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        open_engine(adapted(make_stage(), LoraSpec(rank=4, target_modules=modules)))
    assert refused.value.field == "model.lora_configs.target_modules"


def test_two_engines_of_one_seed_begin_alike(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    """Others that draw random numbers in this process go on undisturbed."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one = open_engine(adapted(make_stage()))
    assert np.array_equal(torch.rand(2).numpy(), expected.numpy())
    other = open_engine(adapted(make_stage()))
    for engine in (one, other):
        engine.train(make_batch(1))
    assert one.checksum() == other.checksum()
