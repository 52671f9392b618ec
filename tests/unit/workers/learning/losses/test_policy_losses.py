"""Values and gradients of policy losses against formulas written as loops."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses.policy_loss import LossNeeds, LossTokens, TokenLoss
from rftd.workers.learning.losses.registry import POLICY_LOSSES

LENGTHS = (3, 1, 5, 4)


def make_tokens(seed: int = 0, *, scale: float = 0.4) -> LossTokens:
    rng = np.random.default_rng(seed)
    count = sum(LENGTHS)
    old = -np.abs(rng.normal(1.5, 1.0, count))
    per_sequence = rng.normal(0, 1, len(LENGTHS))
    return LossTokens(
        logprobs=torch.tensor(old + rng.normal(0, scale, count), requires_grad=True),
        entropies=torch.zeros(count, dtype=torch.float64),
        old_logprobs=torch.tensor(old),
        ref_logprobs=None,
        advantages=torch.tensor(np.repeat(per_sequence, LENGTHS)),
        expert=torch.zeros(count, dtype=torch.bool),
        sequence=torch.tensor(np.repeat(np.arange(len(LENGTHS)), LENGTHS)),
        sequences=len(LENGTHS),
    )


def ppo_token(lp: float, old: float, advantage: float, low: float, high: float, c: float) -> tuple[float, float]:
    """Loss and derivative, as verl and Trinity-RFT write them."""
    log_ratio = max(-20.0, min(20.0, lp - old))
    slope = 1.0 if abs(lp - old) < 20 else 0.0
    ratio = math.exp(log_ratio)
    inside = 1 - low <= ratio <= 1 + high
    plain, clipped = -advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high)
    loss, derivative = (plain, plain * slope) if plain >= clipped else (clipped, clipped * slope if inside else 0.0)
    if advantage < 0 and loss > -advantage * c:
        return -advantage * c, 0.0
    return loss, derivative


@pytest.mark.parametrize("scale", [0.05, 0.4, 3.0, 40.0])
@pytest.mark.parametrize(
    ("arguments", "low", "high", "c"),
    [
        ({}, 0.2, 0.2, 3.0),
        ({"clip_range": 0.1}, 0.1, 0.1, 3.0),
        ({"clip_range_low": 0.2, "clip_range_high": 0.28, "clip_ratio_c": 1.5}, 0.2, 0.28, 1.5),
    ],
)
def test_ppo(scale: float, arguments: dict[str, Any], low: float, high: float, c: float) -> None:
    tokens = make_tokens(scale=scale)
    made = POLICY_LOSSES.open("ppo", arguments).per_token(tokens)
    made.loss.sum().backward()  # type: ignore[no-untyped-call]
    expected = [
        ppo_token(*values, low, high, c)
        for values in zip(
            tokens.logprobs.tolist(), tokens.old_logprobs.tolist(), tokens.advantages.tolist(), strict=True
        )
    ]
    np.testing.assert_allclose(made.loss.detach(), [loss for loss, _ in expected], rtol=1e-9)
    assert tokens.logprobs.grad is not None
    np.testing.assert_allclose(tokens.logprobs.grad, [slope for _, slope in expected], rtol=1e-9, atol=1e-12)
    assert torch.isfinite(made.loss).all()


def test_ppo_on_policy_is_the_policy_gradient() -> None:
    tokens = make_tokens(scale=0.0)
    made = POLICY_LOSSES.open("ppo").per_token(tokens)
    made.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    np.testing.assert_allclose(tokens.logprobs.grad, -tokens.advantages)
    assert not made.metrics["pg_clipfrac"].any()


def test_ppo_without_old_logprobs_takes_the_present_ones() -> None:
    tokens = make_tokens(scale=3.0)
    POLICY_LOSSES.open("ppo", {"fallback_to_policy_gradient": True}).per_token(tokens).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    np.testing.assert_allclose(tokens.logprobs.grad, -tokens.advantages)


def test_ppo_masks_drifted_sequences_with_a_negative_advantage() -> None:
    tokens = make_tokens(seed=0)
    made = POLICY_LOSSES.open("ppo", {"enable_sequence_masking": True, "delta": 0.05}).per_token(tokens)
    plain = POLICY_LOSSES.open("ppo").per_token(tokens)
    start = masked = 0
    for length in LENGTHS:
        part = slice(start, start + length)
        drift = float((tokens.old_logprobs[part] - tokens.logprobs[part].detach()).mean())
        if drift > 0.05 and tokens.advantages[start] < 0:
            masked += length
            assert not made.loss[part].any()
        else:
            torch.testing.assert_close(made.loss[part], plain.loss[part])
        start += length
    assert 0 < masked < sum(LENGTHS)
    assert made.metrics["seq_mask/masked_tokens"].sum() == masked


@pytest.mark.parametrize("arguments", [{"clip_range": -0.1}, {"clip_ratio_c": 1.0}, {"clip": 1}])
def test_arguments_that_make_no_loss_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        POLICY_LOSSES.open("ppo", arguments)


def test_sft_is_minus_the_log_likelihood() -> None:
    tokens = make_tokens()
    POLICY_LOSSES.open("sft").per_token(tokens).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    np.testing.assert_allclose(tokens.logprobs.grad, -np.ones(sum(LENGTHS)))


class PlainLoss:
    """A third party's loss that names its needs by plain attributes."""

    needs_old_logprobs = True
    loss_agg_mode = "seq-mean-token-mean"

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        return TokenLoss(loss=-tokens.logprobs, metrics={})


def test_loss_declares_needs_by_attributes_and_other_needs_have_defaults() -> None:
    assert LossNeeds.of(PlainLoss()) == LossNeeds(old_logprobs=True, loss_agg_mode="seq-mean-token-mean")


@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_what_a_loss_says_beside_its_formula_is_a_need_that_somebody_reads(name: str) -> None:
    loss = POLICY_LOSSES.load(name)
    said = {each for each in dir(loss) if each.startswith("needs_")}
    assert said <= {f"needs_{each.name}" for each in dataclasses.fields(LossNeeds)}
