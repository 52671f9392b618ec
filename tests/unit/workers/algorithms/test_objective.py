"""KL, entropy and aggregation: values against loops."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from rftd.ops.errors import ConfigError
from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms import aggregation
from rftd.workers.algorithms.aggregation import TokenWeights
from rftd.workers.algorithms.kl_losses import KL_LOSSES
from rftd.workers.algorithms.objective import Objective
from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens

MASKS = [np.array(mask, np.uint8) for mask in ([1, 1, 0, 1], [0, 1], [1, 1, 1, 1, 1])]
DIFFERENCES = [0.0, 0.3, -0.7, 5.0, -30.0, 30.0]


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("none", lambda d: 0.0),
        ("k1", lambda d: d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(-d) - 1 + d),
        ("abs", abs),
        ("low_var_kl", lambda d: min(10.0, math.exp(-max(-20.0, min(20.0, d))) - 1 + max(-20.0, min(20.0, d)))),
    ],
)
def test_kl(name: str, formula: object) -> None:
    assert callable(formula)
    logprobs = torch.tensor(DIFFERENCES, dtype=torch.float64) - 40.0
    ref = torch.full_like(logprobs, -40.0)
    got = KL_LOSSES.open(name).estimate(logprobs, ref, ref)
    np.testing.assert_allclose(got, [formula(d) for d in DIFFERENCES], rtol=1e-9)


def test_an_adaptive_coefficient_is_refused() -> None:
    with pytest.raises(ConfigError, match="adaptive"):
        KL_LOSSES.open("k2", {"adaptive": True})


@pytest.mark.parametrize("mode", aggregation.AGGREGATIONS)
def test_aggregation(mode: str) -> None:
    values = [np.arange(1.0, len(mask) + 1) for mask in MASKS]
    weights = aggregation.token_weights(mode, MASKS)
    got = sum(
        weights[i] * float((value * mask).sum()) for i, (value, mask) in enumerate(zip(values, MASKS, strict=True))
    )
    sums = [float((value * mask).sum()) for value, mask in zip(values, MASKS, strict=True)]
    got = float(np.dot(weights, sums))
    counts = [int(mask.sum()) for mask in MASKS]
    expected = {
        "token-mean": sum(sums) / sum(counts),
        "seq-mean-token-sum": sum(sums) / len(sums),
        "seq-mean-token-mean": sum(s / c for s, c in zip(sums, counts, strict=True)) / len(sums),
        "seq-mean-token-sum-norm": sum(sums) / 5,
    }
    assert got == pytest.approx(expected[mode])


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ConfigError, match="token-median"):
        Objective.of(AlgorithmSpec(kind="sft", loss_agg_mode="token-median"))


def test_the_total_is_policy_minus_entropy_plus_kl() -> None:
    spec = AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo", kl_loss="k2", entropy_loss="default")
    spec = msgspec.structs.replace(spec, kl_loss_args={"kl_coef": 0.5}, entropy_loss_args={"entropy_coef": 0.25})
    objective = Objective.of(spec)
    assert objective.needs_reference and objective.needs_old_logprobs
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = LossTokens(
        logprobs=logprobs,
        entropies=torch.tensor([3.0, 1.0], requires_grad=True),
        old_logprobs=logprobs.detach(),
        ref_logprobs=torch.tensor([-1.5, -1.0]),
        advantages=torch.tensor([1.0, -2.0]),
        expert=torch.zeros(2, dtype=torch.bool),
        sequence=torch.tensor([0, 1]),
        sequences=2,
    )
    weights = torch.tensor([0.5, 0.5])
    loss, metrics = objective.terms(tokens, TokenWeights(weights, weights, weights, weights))
    policy, entropy, kl = 0.5, 2.0, (0.125 + 0.5) / 2
    assert loss.item() == pytest.approx(policy - 0.25 * entropy + 0.5 * kl)
    assert metrics["actor/pg_loss"].item() == pytest.approx(policy)
    assert metrics["actor/entropy_loss"].item() == pytest.approx(entropy)
    assert metrics["actor/kl_loss"].item() == pytest.approx(kl)
    assert metrics["actor/final_loss"].item() == pytest.approx(loss.item())
