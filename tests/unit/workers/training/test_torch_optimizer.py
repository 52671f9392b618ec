"""Learning rates of a stage's steps, and what is decayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rftd.ops.errors import ConfigError
from rftd.streams.spec.sections import Optimizer
from rftd.workers.engines.learner.optimizer import StageOptimizer, decays, make_optimizer
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.stage.stage_training import learning_rate


def test_constant_after_a_linear_warm_up() -> None:
    spec = Optimizer(lr=1.0, lr_warmup_steps=4, decay_all=True)
    assert [learning_rate(spec, step, 10) for step in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_cosine_begins_at_the_rate_and_reaches_its_minimum_at_the_last_step() -> None:
    spec = Optimizer(lr=2.0, lr_warmup_steps=2, lr_scheduler_type="cosine", min_lr_ratio=0.1, decay_all=True)
    rates = [learning_rate(spec, step, 12) for step in range(1, 14)]
    assert rates[:2] == pytest.approx([1.0, 2.0])
    assert rates[6] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[11] == rates[12] == pytest.approx(0.2)
    assert sorted(set(rates[1:]), reverse=True) == rates[1:12]


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 10])
@pytest.mark.parametrize("total_steps", [1, 2, 10, 11])
def test_each_cosine_has_the_whole_rate_once_and_ends_at_its_minimum(warmup_steps: int, total_steps: int) -> None:
    spec = Optimizer(lr=2.0, lr_warmup_steps=warmup_steps, lr_scheduler_type="cosine", min_lr_ratio=0.1, decay_all=True)
    rates = [learning_rate(spec, step, total_steps) for step in range(1, total_steps + 1)]
    if total_steps > max(1, warmup_steps):
        assert rates[-1] == pytest.approx(0.2)
        assert rates.count(2.0) == 1
    else:
        assert rates[-1] == pytest.approx(2.0 * total_steps / max(1, warmup_steps))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="lion"):
        make_optimizer(Optimizer(optimizer_type="lion", decay_all=True), {"a": torch.nn.Parameter(torch.zeros(1))})
    with pytest.raises(ConfigError, match="linear"):
        learning_rate(Optimizer(lr_scheduler_type="linear", decay_all=True), 1, 10)


@pytest.mark.parametrize(
    ("name", "shape", "decayed"),
    [
        ("model.layers.0.mlp.up_proj.weight", (4, 8), True),
        ("model.embed_tokens.weight", (16, 8), True),
        ("lm_head.weight", (16, 8), True),
        ("layers.0.q_proj.lora_A.default.weight", (2, 8), True),
        ("model.layers.0.mlp.experts.gate_up_proj", (2, 8, 8), True),
        ("model.layers.0.mlp.up_proj.bias", (4,), False),
        ("model.norm.weight", (8,), False),
        ("model.layers.0.self_attn.sinks", (2,), False),
        ("model.layers.0.self_attn.q_norm.weight", (2, 4), False),
        ("transformer.h.0.ln_1.weight", (1, 8), False),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (2, 8), False),
    ],
)
def test_matrices_are_decayed(name: str, shape: tuple[int, ...], decayed: bool) -> None:
    assert decays(name, torch.nn.Parameter(torch.zeros(shape))) is decayed


Open = Callable[[Any], TorchTrainerEngine]
Make = Callable[..., Any]


def _trained(open_engine: Open, make_stage: Make, make_batch: Make, **optimizer: Any) -> dict[str, torch.Tensor]:
    engine = open_engine(make_stage(optimizer=Optimizer(lr=0.1, **{"decay_all": True, **optimizer})))
    engine.train(make_batch())
    return {name: value.clone() for name, value in engine.tensors().items()}


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("decay_all", [True, False])
def test_a_step_of_the_engine_decays_what_it_is_to_decay(
    open_engine: Open, make_stage: Make, make_batch: Make, kind: str, decay_all: bool
) -> None:
    before = {name: value.clone() for name, value in open_engine(make_stage()).tensors().items()}
    plain = _trained(open_engine, make_stage, make_batch, optimizer_type=kind, weight_decay=0.0)
    decayed = _trained(open_engine, make_stage, make_batch, optimizer_type=kind, weight_decay=0.5, decay_all=decay_all)
    norms = [name for name, value in before.items() if value.ndim == 1]
    assert norms
    assert len(norms) < len(before)
    for name, value in before.items():
        share = 0.0 if name in norms and not decay_all else 0.1 * 0.5
        torch.testing.assert_close(plain[name] - decayed[name], share * value, rtol=1e-3, atol=1e-6)


def test_adams_epsilon_acts(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    before = open_engine(make_stage()).tensors()["model.norm.weight"].clone()
    small = _trained(open_engine, make_stage, make_batch)["model.norm.weight"]
    large = _trained(open_engine, make_stage, make_batch, eps=1.0)["model.norm.weight"]
    assert (small - before).abs().max() > 0.05 > (large - before).abs().max() > 0


def test_the_optimizer_of_a_checkpoint_goes_on_in_groups(
    open_engine: Open, make_stage: Make, make_batch: Make, tmp_path: Path
) -> None:
    stage = make_stage(optimizer=Optimizer(lr=0.01, weight_decay=0.5, decay_all=True))
    engine = open_engine(stage)
    engine.train(make_batch(1))
    engine.save(tmp_path, hf=False)
    for decay_all in (True, False):
        optimizer = msgspec.structs.replace(stage.algorithm.optimizer, decay_all=decay_all)
        other = msgspec.structs.replace(stage, algorithm=msgspec.structs.replace(stage.algorithm, optimizer=optimizer))
        resumed = open_engine(other)
        resumed.load(tmp_path, other)
        resumed.train(make_batch(2))
        found = {name: value.clone() for name, value in resumed.tensors().items()}
        if decay_all:
            engine.train(make_batch(2))
            assert resumed.checksum() == engine.checksum()
        else:
            moved = {name for name, value in engine.tensors().items() if not torch.equal(value, found[name])}
            assert moved == {name for name, value in found.items() if value.ndim == 1}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_adam_is_fused_and_counts_its_steps_where_the_parameters_are(kind: str) -> None:
    """The GPU is one of tensors without numbers. torch.optim.Adam: "fused" wants counters on the parameters' device."""
    spec = Optimizer(lr=0.1, decay_all=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        optimizer = StageOptimizer(spec, {"a": torch.nn.Parameter(torch.empty(3, 2, device=kind))})
        assert all(group["fused"] for group in optimizer.inner.param_groups)
        tensors = optimizer.begin_state({"exp_avg.a": (3, 2), "exp_avg_sq.a": (3, 2), "step.a": ()})
        assert tensors.keys() == {"exp_avg.a", "exp_avg_sq.a", "step.a"}
        assert {tensor.device.type for tensor in tensors.values()} == {kind}


def test_counters_of_an_optimizer_that_is_not_fused_stay_on_the_host() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        parameters = {"a": torch.nn.Parameter(torch.empty(3, 2, device="cuda"))}
        optimizer = StageOptimizer(Optimizer(lr=0.1, decay_all=True), parameters)
        optimizer.inner = torch.optim.AdamW(list(parameters.values()), foreach=True)
        tensors = optimizer.begin_state({"step.a": (), "exp_avg.a": (3, 2)})
        assert tensors["step.a"].device.type == "cpu"
        assert tensors["exp_avg.a"].device.type == "cuda"
