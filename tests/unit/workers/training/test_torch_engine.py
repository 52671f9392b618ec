"""The torch engine's steps against loops of torch, and what its settings must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rftd.ops.errors import ConfigError, DataError, NonFiniteLossError, TrainError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, StageSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.policy_loss import LossTokens, TokenLoss

Open = Callable[[StageSpec], TorchTrainerEngine]
Make = Callable[..., Any]
PLAIN = Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0)
"""One step subtracts the gradient."""


def gradient(open_engine: Open, stage: StageSpec, batch: TrainBatch) -> dict[str, torch.Tensor]:
    engine = open_engine(stage)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    engine.train(batch)
    return {name: before[name] - value for name, value in engine.tensors().items()}


def reference_gradient(model: Path, samples: Sequence[TrainSample]) -> dict[str, torch.Tensor]:
    """GRPO, token-mean, one response at a time with the whole model."""
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, count = torch.zeros(()), sum(int(sample.loss_mask.sum()) for sample in samples)
    for sample in samples:
        assert sample.logprobs is not None
        assert sample.advantages is not None
        ids = torch.tensor(sample.tokens.astype(np.int64))[None]
        logits = policy(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
        if sample.temperatures is not None:
            logits = logits / torch.tensor(sample.temperatures)[:, None]
        chosen = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0]
        advantages = torch.tensor(sample.advantages)
        ratio = (chosen - torch.tensor(sample.logprobs)).exp()
        loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * 3.0), loss)
        total = total + (loss * torch.tensor(sample.loss_mask)).sum() / count
    total.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("prefix_sharing", ["auto", "never"])
@pytest.mark.parametrize("temperatures", [[1.0], [0.7], [0.6, 1.5, 1.0]])
def test_the_gradient_is_that_of_the_formula(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, prefix_sharing: str, temperatures: Any
) -> None:
    """The tokens of a response take turns at the temperatures."""
    batch = make_batch()
    samples = [
        msgspec.structs.replace(sample, temperatures=np.resize(temperatures, len(sample.loss_mask)))
        for sample in batch.samples
    ]
    batch = msgspec.structs.replace(batch, samples=samples)
    got = gradient(open_engine, make_stage(optimizer=PLAIN, prefix_sharing=prefix_sharing), batch)
    assert_equal(got, reference_gradient(tiny_model, samples))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_micro_batches_and_shared_prompts_change_only_rounding(
    open_engine: Open, make_stage: Make, make_batch: Make, mode: str
) -> None:
    settings = {"optimizer": PLAIN, "mode": mode, "kl_coef": 0.1, "entropy_coef": 0.1}
    whole = gradient(open_engine, make_stage(prefix_sharing="never", **settings), make_batch())
    for budget_tokens in (16, 50, 8192):
        stage = make_stage(budget_tokens=budget_tokens, **settings)
        assert_equal(gradient(open_engine, stage, make_batch()), whole)


def test_figures_have_the_known_names(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    result = open_engine(make_stage(kl_coef=0.1)).train(make_batch())
    assert result.tokens == sum(int(sample.loss_mask.sum()) for sample in make_batch().samples)
    names = "pg_loss pg_clipfrac ppo_kl kl_loss kl_coef entropy entropy_loss final_loss grad_norm lr"
    assert {f"actor/{name}" for name in names.split()} <= result.metrics.keys()
    assert {"response_length/mean", "prompt_length/max", "critic/rewards/mean", "critic/advantages/min"} <= set(
        result.metrics
    )
    assert result.metrics["actor/kl_loss"] == 0.0
    assert all(isinstance(value, float) and np.isfinite(value) for value in result.metrics.values())


def test_the_reference_stays_where_the_stage_began(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    engine = open_engine(make_stage(kl_coef=0.1))
    assert engine.train(make_batch(1)).metrics["actor/kl_loss"] == 0.0
    assert engine.train(make_batch(2)).metrics["actor/kl_loss"] > 0.0


def test_a_batch_without_trained_tokens_leaves_the_weights(
    open_engine: Open, make_stage: Make, make_batch: Make
) -> None:
    engine, batch = open_engine(make_stage()), make_batch()
    before = engine.checksum()
    samples = [msgspec.structs.replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in batch.samples]
    result = engine.train(msgspec.structs.replace(batch, samples=samples))
    assert (result.tokens, engine.checksum()) == (0, before)


@pytest.mark.parametrize("poison", ["logprobs", "advantages"])
def test_nan_leaves_weights_and_optimizer_untouched(
    open_engine: Open, make_stage: Make, make_batch: Make, poison: str
) -> None:
    engine, twin = open_engine(make_stage()), open_engine(make_stage())
    engine.train(make_batch(1))
    twin.train(make_batch(1))
    batch = make_batch(2)
    broken = msgspec.structs.replace(
        batch.samples[3], **{poison: np.full(len(batch.samples[3].loss_mask), np.nan, np.float32)}
    )
    samples = [*batch.samples[:3], broken, *batch.samples[4:]]
    skipped = engine.train(msgspec.structs.replace(batch, samples=samples))
    assert "item 3" in skipped.skipped
    assert skipped.tokens == 0
    assert all(np.isfinite(value) for value in skipped.metrics.values())
    assert engine.checksum() == twin.checksum()
    engine.train(make_batch(3))
    twin.train(make_batch(3))
    assert engine.checksum() == twin.checksum()


class NanLoss:
    """A policy loss that is no number, with a gradient."""

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        return TokenLoss(loss=tokens.logprobs * float("nan"), metrics={})


def test_too_many_skipped_steps_in_a_row_are_an_error(
    open_engine: Open, make_stage: Make, make_batch: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The count goes on where a checkpoint left it, and a good step begins it anew."""
    stage = make_stage()
    engine = open_engine(stage)
    assert engine._training is not None
    good = engine._training._objective
    bad = replace(good, policy_loss=NanLoss())
    for step, objective in enumerate((bad, bad, good, bad, bad), 1):
        monkeypatch.setattr(engine._training, "_objective", objective)
        result = engine.train(make_batch(step))
        assert bool(result.skipped) == (objective is bad)
    assert result.metrics["actor/nonfinite_in_a_row"] == 2
    engine.save(tmp_path, hf=False)
    again = open_engine(stage)
    again.load(tmp_path, stage)
    assert again.checksum() == engine.checksum()
    monkeypatch.setattr(again._training, "_objective", bad)
    with pytest.raises(NonFiniteLossError, match=r"step 6 was skipped: the loss is nan.*the 2 steps before it"):
        again.train(make_batch(6))
    assert again.checksum() == engine.checksum()


def test_items_that_cannot_be_trained_are_named(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    engine, batch = open_engine(make_stage()), make_batch()
    first = batch.samples[0]
    tokens = first.tokens.copy()
    tokens[0] = 1000
    for change, says in (({"logprobs": None}, "log-probabilities"), ({"tokens": tokens}, "token 1000")):
        sample = msgspec.structs.replace(first, **change)
        with pytest.raises(TrainError, match=says):
            engine.train(msgspec.structs.replace(batch, samples=[sample]))


def test_bfloat16_is_near(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    half = open_engine(make_stage(dtype="bfloat16")).train(make_batch()).metrics
    full = open_engine(make_stage()).train(make_batch()).metrics
    assert half["actor/entropy"] == pytest.approx(full["actor/entropy"], rel=0.02)


@pytest.mark.parametrize(
    "files", [{}, {"config.json": b"{}"}, {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"torn"}]
)
def test_a_folder_without_a_model_is_refused(tmp_path: Path, make_stage: Make, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    experiment = ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(make_stage(),), config={})
    with pytest.raises(DataError) as raised:
        TorchTrainerEngine().open(experiment, str(tmp_path))
    assert raised.value.where == str(tmp_path)
    assert raised.value.fix


def test_each_stage_has_the_threads_that_it_asked_for(open_engine: Open, make_stage: Make) -> None:
    stage = make_stage()
    engine = open_engine(stage)
    before = torch.get_num_threads()
    trainer = msgspec.structs.replace(stage.trainer, threads=before + 1)
    engine.begin_stage(msgspec.structs.replace(stage, name="next", trainer=trainer))
    during = torch.get_num_threads()
    engine.begin_stage(stage)
    assert (before, during, torch.get_num_threads()) == (1, 2, 1)


def test_settings_that_the_engine_does_not_have_are_refused(open_engine: Open, make_stage: Make) -> None:
    with pytest.raises(ConfigError, match="float16"):
        open_engine(make_stage(dtype="float16"))
    stage = make_stage()
    trainer = msgspec.structs.replace(stage.trainer, engine_args={"devise": "cpu"})
    with pytest.raises(ConfigError, match="devise"):
        open_engine(msgspec.structs.replace(stage, trainer=trainer))


def test_a_stage_goes_on_with_another_objective_and_rate(
    open_engine: Open, make_stage: Make, make_batch: Make, tmp_path: Path
) -> None:
    """A fork does so: parts that the checkpoint has no state for begin here; the rest of the optimizer goes on."""
    engine = open_engine(make_stage())
    engine.train(make_batch(1))
    engine.save(tmp_path, hf=False)
    same, slower, penalised, plain = (open_engine(make_stage()) for _ in range(4))
    same.load(tmp_path, make_stage())
    slower.load(tmp_path, make_stage(optimizer=Optimizer(lr=1e-3, decay_all=True)))
    penalised.load(tmp_path, make_stage(kl_coef=0.1))
    plain.load(tmp_path, make_stage(optimizer=Optimizer(optimizer_type="sgd", lr=1e-2, decay_all=True)))
    engine.train(make_batch(2))
    assert same.train(make_batch(2)).metrics["actor/lr"] == 1e-2
    assert same.checksum() == engine.checksum()
    assert slower.train(make_batch(2)).metrics["actor/lr"] == 1e-3
    assert slower.checksum() != engine.checksum()
    assert penalised.train(make_batch(2)).metrics["actor/kl_loss"] == 0.0
    assert penalised.train(make_batch(3)).metrics["actor/kl_loss"] > 0.0
    plain.train(make_batch(2))
    plain.save(tmp_path / "sgd", hf=False)
    same.load(tmp_path / "sgd", make_stage())
    same.train(make_batch(3))


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4)])
def test_layers_computed_again_give_equal_weights(
    open_engine: Open, make_stage: Make, make_batch: Make, lora: LoraSpec | None
) -> None:
    """Each layer runs twice, so they were computed again."""
    stage = make_stage()
    stage = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))
    trainer = msgspec.structs.replace(stage.trainer, engine_args={"gradient_checkpointing": True})
    plain, again = open_engine(stage), open_engine(msgspec.structs.replace(stage, trainer=trainer))
    calls = {"plain": 0, "again": 0}
    for name, engine in (("plain", plain), ("again", again)):
        mlp = engine._open_policy.model.get_decoder().layers[0].mlp

        def count(*_: object, name: str = name) -> None:
            calls[name] += 1

        mlp.register_forward_pre_hook(count)
        for step in (1, 2):
            engine.train(make_batch(step))
    assert again.checksum() == plain.checksum()
    assert calls["again"] == 2 * calls["plain"]


class Unordered(torch.autograd.Function):
    """An operation like some of a GPU: without a deterministic form on the way back."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor) -> torch.Tensor:
        return states.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("unordered_backward_cuda does not have a deterministic implementation, but you set ...")
        return gradient


def test_where_torch_has_no_deterministic_form_a_gpu_trains_without(
    open_engine: Open, make_stage: Make, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_engine(make_stage())
    plain.train(make_batch())
    engine = open_engine(make_stage())
    norm = engine._open_policy.model.model.norm
    monkeypatch.setattr(norm, "forward", lambda states, real=norm.forward: Unordered.apply(real(states)))
    with pytest.raises(RuntimeError, match="does not have a deterministic"):
        engine.train(make_batch())
    # Its device is a CPU still; the switch is that of a GPU.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    torch.use_deterministic_algorithms(False)
    engine._determinism.begin(torch.device("cuda"))
    assert engine.environment()["deterministic_algorithms"] == "true"
    engine.train(make_batch())
    assert engine.environment()["deterministic_algorithms"] == "false"
    assert engine.tensors().keys() == plain.tensors().keys()
    assert_equal(engine.tensors(), plain.tensors())
