"""Corrections, KL penalties and figures of mismatch through the torch engine, against the whole model and loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rftd.ops.errors import ConfigError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.learning.losses.policy_loss import LossTokens, TokenLoss

Open = Callable[[StageSpec], TorchTrainerEngine]
Make = Callable[..., Any]
PLAIN = Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0)
Gradient = dict[str, torch.Tensor]


def corrected(stage: StageSpec, old: str, *parts: tuple[str, dict[str, Any]], **algorithm: Any) -> StageSpec:
    correction = CorrectionSpec(
        old_logprobs=old, parts=tuple(CorrectionPart(kind=kind, args=args) for kind, args in parts)
    )
    made = msgspec.structs.replace(stage.algorithm, correction=correction, **algorithm)
    return msgspec.structs.replace(stage, algorithm=made)


def one_step(engine: TorchTrainerEngine, batch: TrainBatch) -> tuple[Gradient, StepResult]:
    before = {name: value.clone() for name, value in engine.tensors().items()}
    result = engine.train(batch)
    return {name: before[name] - value for name, value in engine.tensors().items()}, result


def drawn(batch: TrainBatch, *, step: int = 5) -> TrainBatch:
    """The batch as that of a later step, whose tokens are of several versions."""
    rng = np.random.default_rng(0)
    samples = [
        msgspec.structs.replace(sample, versions=np.sort(rng.integers(1, step, len(sample.loss_mask))))
        for sample in batch.samples
    ]
    return TrainBatch(step=step, stage_step=step, samples=samples)


def reference_gradient(model: Path, batch: TrainBatch, old: str, weigh: Callable[..., torch.Tensor]) -> Gradient:
    """One response at a time with the whole model; `weigh(log w of its trained tokens, A)` is the multiplier."""
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, count = torch.zeros(()), sum(int(sample.loss_mask.sum()) for sample in batch.samples)
    for sample in batch.samples:
        assert sample.logprobs is not None
        assert sample.advantages is not None
        assert sample.versions is not None
        ids = torch.tensor(sample.tokens.astype(np.int64))[None]
        logits = policy(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
        trained = torch.tensor(sample.loss_mask) != 0
        now = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[trained, 0]
        rollout, advantage = torch.tensor(sample.logprobs)[trained], float(sample.advantages[0])
        age = torch.tensor(batch.step - 1 - sample.versions)[trained]
        share = {"rollout": 0.0, "recomputed": 1.0, "approximated": age / (age + 1)}[old]
        proximal = rollout + share * (now.detach() - rollout)
        ratio = (now - proximal).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        loss = torch.minimum(loss, torch.tensor(-advantage * 3.0)) if advantage < 0 else loss
        seen = (now.detach() if old == "rollout" else proximal) - rollout
        total = total + (loss * weigh(seen, advantage)).sum() / count
    total.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def assert_near(one: Gradient, two: Gradient) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=2e-6)


CASES: list[tuple[str, list[tuple[str, dict[str, Any]]], Callable[..., torch.Tensor]]] = [
    ("recomputed", [], lambda gap, _: torch.ones_like(gap)),
    ("recomputed", [("decoupled", {})], lambda gap, _: gap.exp()),
    ("approximated", [("decoupled", {})], lambda gap, _: gap.exp()),
    ("approximated", [("tis", {"high": 1.1})], lambda gap, _: gap.exp().clamp(max=1.1)),
    ("recomputed", [("tis", {"level": "sequence"})], lambda gap, _: gap.sum().exp().clamp(max=2.0).expand_as(gap)),
    ("recomputed", [("icepop", {"low": 0.8, "high": 1.2})], lambda gap, _: gap.exp() * (gap.exp() - 1).abs().le(0.2)),
    (
        "rollout",
        [("geometric", {"high": 1.2})],
        lambda gap, _: gap.mean().abs().le(math.log(1.2)).float().expand_as(gap),
    ),
    (
        "recomputed",
        [("opsm", {"delta": 0.05}), ("decoupled", {})],
        lambda gap, a: gap.exp() * float(a >= 0 or float(-gap.mean()) <= 0.05),
    ),
]


@pytest.mark.parametrize("budget_tokens", [16, 8192])
@pytest.mark.parametrize(("old", "parts", "weigh"), CASES)
def test_the_gradient_is_that_of_the_formula(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, budget_tokens: int, old: str,
    parts: list[tuple[str, dict[str, Any]]], weigh: Callable[..., torch.Tensor],
) -> None:  # fmt: skip
    batch = drawn(make_batch())
    stage = corrected(make_stage(optimizer=PLAIN, budget_tokens=budget_tokens), old, *parts)
    gradient, result = one_step(open_engine(stage), batch)
    assert_near(gradient, reference_gradient(tiny_model, batch, old, weigh))
    assert all(math.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("part", [("m2po", {}), ("tis", {"batch_normalize": True})])
def test_what_needs_other_responses_does_not_depend_on_micro_batches(
    open_engine: Open, make_stage: Make, make_batch: Make, part: tuple[str, dict[str, Any]]
) -> None:
    batch = drawn(make_batch())
    whole, first = one_step(open_engine(corrected(make_stage(optimizer=PLAIN), "recomputed", part)), batch)
    small = make_stage(optimizer=PLAIN, budget_tokens=16, prefix_sharing="never")
    split, second = one_step(open_engine(corrected(small, "recomputed", part)), batch)
    assert_near(whole, split)
    assert second.metrics["actor/micro_batches"] > first.metrics["actor/micro_batches"]
    for name, value in first.metrics.items():
        if name.startswith(("mismatch/", "correction/")):
            assert second.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert first.metrics.get("correction/masked", 0.0) > 0 or "correction/multiplier/mean" in first.metrics


def test_the_figures_of_mismatch(tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    batch = make_batch()
    stage = corrected(make_stage(budget_tokens=16), "rollout", ("token", {"high": 1.2}))
    found = open_engine(stage).train(batch).metrics
    policy: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    gaps, advantages = [], []
    for sample in batch.samples:
        ids = torch.tensor(sample.tokens.astype(np.int64))[None]
        with torch.no_grad():
            logits = policy(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
        now = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0].numpy()
        gaps += (now - sample.logprobs)[sample.loss_mask != 0].tolist()
        advantages += sample.advantages[sample.loss_mask != 0].tolist()
    k3 = [math.exp(gap) - 1 - gap for gap in gaps]
    ratios = [math.exp(gap) for gap in gaps]
    count = len(gaps)
    masked = [not 1 / 1.2 <= ratio <= 1.2 for ratio in ratios]
    up = sum(each for each, advantage in zip(masked, advantages, strict=True) if advantage > 0)
    expected = {
        "mismatch/k3/mean": sum(k3) / count,
        "mismatch/k3/max": max(k3),
        "mismatch/ratio/mean": sum(ratios) / count,
        "mismatch/ratio/max": max(ratios),
        "mismatch/ratio/min": min(ratios),
        "mismatch/chi2": sum(ratio**2 for ratio in ratios) / count - 1,
        "mismatch/ess": sum(ratios) ** 2 / (count * sum(ratio**2 for ratio in ratios)),
        "correction/masked": sum(masked) / count,
        "correction/masked_positive": up / count,
        "correction/masked_negative": (sum(masked) - up) / count,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    parts = found["actor/pg_clipfrac_positive"] + found["actor/pg_clipfrac_negative"]
    assert parts == pytest.approx(found["actor/pg_clipfrac"])
    assert parts > 0


def test_nothing_that_is_not_asked_for_costs_a_pass(
    open_engine: Open, make_stage: Make, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rftd.workers.engines.torch.trainer import forward, passes

    calls: list[int] = []
    original = forward.logprobs_of

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(forward, "logprobs_of", counted)
    monkeypatch.setattr(passes, "logprobs_of", counted)
    for old, parts, expected in (
        ("rollout", [], 1),
        ("recomputed", [("decoupled", {}), ("opsm", {})], 1),
        ("approximated", [("tis", {})], 1),
        ("recomputed", [("m2po", {})], 2),
    ):
        calls.clear()
        open_engine(corrected(make_stage(), old, *parts)).train(drawn(make_batch()))
        assert len(calls) == expected, (old, parts)


def penalised(stage: StageSpec, **arguments: Any) -> StageSpec:
    return corrected(stage, "rollout", kl_penalty="k1", kl_penalty_args=arguments)


def test_the_loss_of_m2po_brings_its_mask(open_engine: Open, make_stage: Make, make_batch: Make) -> None:
    batch = drawn(make_batch())
    base = make_stage(optimizer=PLAIN, budget_tokens=16)
    got, result = one_step(
        open_engine(corrected(base, "rollout", policy_loss="m2po", policy_loss_args={"m2_threshold": 0.02})), batch
    )
    parts = corrected(base, "rollout", ("m2po", {"threshold": 0.02}), policy_loss="importance_sampling")
    expected, _ = one_step(open_engine(parts), batch)
    assert_near(got, expected)
    assert 0 < result.metrics["correction/masked"] < 1


@pytest.mark.parametrize(
    ("loss", "arguments", "figure"),
    [
        ("clip_cov", {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.01}, "correction/masked"),
        ("kl_cov", {"kl_cov_ratio": 0.2}, "actor/held"),
    ],
)
def test_a_loss_finds_the_tokens_of_large_covariance_in_the_whole_mini_batch(
    open_engine: Open, make_stage: Make, make_batch: Make, loss: str, arguments: dict[str, Any], figure: str
) -> None:
    batch = drawn(make_batch())
    given = {"policy_loss": loss, "policy_loss_args": arguments}
    whole, first = one_step(open_engine(corrected(make_stage(optimizer=PLAIN), "rollout", **given)), batch)
    small = make_stage(optimizer=PLAIN, budget_tokens=16, prefix_sharing="never")
    split, second = one_step(open_engine(corrected(small, "rollout", **given)), batch)
    assert second.metrics["actor/micro_batches"] > first.metrics["actor/micro_batches"]
    assert_near(whole, split)
    assert second.metrics[figure] == pytest.approx(first.metrics[figure], rel=1e-5)
    trained = sum(int(sample.loss_mask.sum()) for sample in batch.samples)
    assert 0 < first.metrics[figure] <= int(0.2 * trained) / trained + 1e-6


@pytest.mark.parametrize("advantage", ["grpo", "clipb"])
def test_a_penalty_is_taken_from_advantages(
    open_engine: Open, make_stage: Make, make_batch: Make, advantage: str
) -> None:
    """At the stage's first step the reference is the policy itself. A function of tokens sees what is left."""
    batch, coef = make_batch(), 0.5
    stage = penalised(make_stage(optimizer=PLAIN, budget_tokens=16), kl_coef=coef)
    arguments = {"mu": 1e9} if advantage == "clipb" else {}
    algorithm = msgspec.structs.replace(stage.algorithm, advantage=advantage, advantage_args=arguments)
    stage = msgspec.structs.replace(stage, algorithm=algorithm)
    got, result = one_step(open_engine(stage), batch)
    probe = open_engine(make_stage(optimizer=PLAIN))
    samples = [with_penalty(probe, sample, coef) for sample in batch.samples]
    expected, _ = one_step(open_engine(make_stage(optimizer=PLAIN)), msgspec.structs.replace(batch, samples=samples))
    assert_near(got, expected)
    assert result.metrics["critic/kl_coef"] == coef
    assert result.metrics["critic/kl"] != 0


def with_penalty(engine: TorchTrainerEngine, sample: TrainSample, coef: float) -> TrainSample:
    ids = torch.tensor(sample.tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = engine._model(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
    reference = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0].numpy()
    return msgspec.structs.replace(sample, advantages=sample.advantages - coef * (sample.logprobs - reference))


def test_adaptive_coefficients_go_on_after_a_checkpoint(
    open_engine: Open, make_stage: Make, make_batch: Make, tmp_path: Path
) -> None:
    adaptive = {"adaptive": True, "target_kl": 0.001, "horizon": 100}
    stage = penalised(make_stage(kl_coef=0.1), kl_coef=0.5, **adaptive)
    loss = msgspec.structs.replace(stage.algorithm, kl_loss_args={"kl_coef": 0.1, **adaptive})
    stage = msgspec.structs.replace(stage, algorithm=loss)
    engine = open_engine(stage)
    found = [engine.train(make_batch(step)).metrics for step in (1, 2)]
    assert found[0]["critic/kl_coef"] == 0.5
    assert found[0]["actor/kl_coef"] == 0.1
    error = min(max(found[0]["critic/kl"] / 0.001 - 1, -0.2), 0.2)
    assert found[1]["critic/kl_coef"] == pytest.approx(0.5 * (1 + error * 16 / 100))
    assert found[1]["actor/kl_coef"] == pytest.approx(0.1 * (1 - 0.2 * 16 / 100)), "at the first step its KL is 0"
    engine.save(tmp_path, hf=False)
    again = open_engine(stage)
    again.load(tmp_path, stage)
    one, two = engine.train(make_batch(3)), again.train(make_batch(3))
    assert one.metrics == two.metrics
    assert engine.checksum() == again.checksum()
    again.begin_stage(stage)
    assert again.train(make_batch(4)).metrics["critic/kl_coef"] == 0.5


class Wrong:
    """A plug-in's policy loss with a fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        loss = -tokens.logprobs
        if self._fault == "scalar":
            return TokenLoss(loss=loss.mean(), metrics={})
        if self._fault == "metric":
            return TokenLoss(loss=loss, metrics={"theirs": loss.detach()[:1]})
        return TokenLoss(loss=loss.detach(), metrics={})


@pytest.mark.parametrize(
    ("fault", "says"), [("scalar", "gave loss of shape"), ("metric", "gave theirs of shape"), ("cut", "without a gra")]
)
def test_losses_of_a_wrong_shape_are_refused(
    open_engine: Open, make_stage: Make, make_batch: Make, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    engine = open_engine(make_stage())
    before = engine.checksum()
    assert engine._training is not None
    objective = replace(engine._training._objective, policy_loss=Wrong(fault))
    monkeypatch.setattr(engine._training, "_objective", objective)
    with pytest.raises(ConfigError, match=says) as caught:
        engine.train(make_batch())
    assert caught.value.field == "algorithm.policy_loss_fn"
    assert engine.checksum() == before


def poisoned(samples: Sequence[TrainSample], **change: Any) -> list[TrainSample]:
    return [*samples[:2], msgspec.structs.replace(samples[2], **change), *samples[3:]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_and_logprobs_that_are_no_numbers_skip_the_step(
    open_engine: Open, make_stage: Make, make_batch: Make, bad: float
) -> None:
    engine, batch = open_engine(make_stage()), make_batch()
    logprobs = np.where(batch.samples[2].loss_mask != 0, np.float32(bad), np.float32(-1))
    before = engine.checksum()
    for step, change in enumerate(({"reward": bad}, {"logprobs": logprobs}), 1):
        samples = poisoned(batch.samples, **change)
        result = engine.train(TrainBatch(step=step, stage_step=step, samples=samples))
        assert "item 2" in result.skipped
        assert engine.checksum() == before
    assert not engine.train(TrainBatch(step=3, stage_step=3, samples=batch.samples)).skipped
