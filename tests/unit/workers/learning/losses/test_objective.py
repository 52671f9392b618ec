"""KL, entropy and aggregation: values against loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.loss_tokens import EXPERTS, LENGTHS, make_loss_tokens, responses_of

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.losses import aggregation, from_tensors
from rftd.workers.learning.losses.aggregation import Aggregation, TokenWeights
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossTokens
from rftd.workers.learning.losses.preference_losses import IpoLoss
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.learning.losses.token_ratios import ProbabilityClipLoss

MASKS = [np.array(mask, np.uint8) for mask in ([1, 1, 0, 1], [0, 1], [1, 1, 1, 1, 1])]
DIFFERENCES = [0.0, 0.3, -0.7, 5.0, -30.0, 30.0]


def clipped(d: float) -> float:
    return max(-20.0, min(20.0, d))


def k3(d: float) -> float:
    return math.exp(-d) - 1 + d


@pytest.mark.parametrize(
    ("name", "formula", "derivative"),
    [
        ("none", lambda d, x: 0.0, lambda d, x: 0.0),
        ("k1", lambda d, x: d, lambda d, x: 1.0),
        ("k2", lambda d, x: d * d / 2, lambda d, x: d),
        ("k3", lambda d, x: k3(d), lambda d, x: 1 - math.exp(-d)),
        ("abs", lambda d, x: abs(d), lambda d, x: math.copysign(1.0, d) if d else 0.0),
        (
            "low_var_kl",
            lambda d, x: min(10.0, k3(clipped(d))),
            lambda d, x: 1 - math.exp(-d) if k3(clipped(d)) <= 10 and abs(d) <= 20 else 0.0,
        ),
        (
            "corrected_k3",
            lambda d, x: min(math.exp(x), 2.0) * k3(d),
            lambda d, x: min(math.exp(x), 2.0) * (1 - math.exp(-d)),
        ),
    ],
)
def test_kl(name: str, formula: Callable[..., float], derivative: Callable[..., float]) -> None:
    """Against the formulas in d = logprob - reference and x = logprob - old."""
    drifts = [-1.0, 0.5, 0.0, 1.0, 3.0, -3.0]
    logprobs = torch.tensor(DIFFERENCES, dtype=torch.float64) - 40.0
    logprobs.requires_grad_()
    old = logprobs.detach() - torch.tensor(drifts, dtype=torch.float64)
    got = KL_LOSSES.open(name).estimate(logprobs, torch.full_like(logprobs, -40.0), old)
    pairs = list(zip(DIFFERENCES, drifts, strict=True))
    np.testing.assert_allclose(got.detach(), [formula(d, x) for d, x in pairs], rtol=1e-9, atol=1e-12)
    if got.requires_grad:
        (gradient,) = torch.autograd.grad(got.sum(), logprobs)
        np.testing.assert_allclose(gradient, [derivative(d, x) for d, x in pairs], rtol=1e-9, atol=1e-12)


def test_an_adaptive_coefficient_follows_the_rule() -> None:
    with pytest.raises(ConfigError, match="target_kl and horizon"):
        KL_LOSSES.open("k2", {"adaptive": True})
    rule = KL_LOSSES.open("k2", {"adaptive": True, "target_kl": 0.1, "horizon": 100}).rule
    assert rule is not None
    assert rule.next(0.5, 0.11, 10) == pytest.approx(0.5 * (1 + 0.1 * 0.1))
    assert rule.next(0.5, 9.0, 10) == pytest.approx(0.5 * (1 + 0.2 * 0.1))
    assert rule.next(0.5, 0.0, 10) == pytest.approx(0.5 * (1 - 0.2 * 0.1))
    assert rule.next(0.5, math.nan, 10) == 0.5


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
        "seq-mean-token-sum-norm": sum(sums) / len(sums) / 5,
    }
    assert got == pytest.approx(expected[mode])


@pytest.mark.parametrize("mode", aggregation.AGGREGATIONS)
def test_a_response_without_a_trained_token_changes_nothing(mode: str) -> None:
    silent = np.zeros(4, np.uint8)
    alone = aggregation.token_weights(mode, MASKS)
    assert aggregation.token_weights(mode, [silent, *MASKS, silent])[1:-1].tolist() == alone.tolist()
    assert np.isfinite(aggregation.token_weights(mode, [silent])).all()


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ConfigError, match="token-median"):
        Objective.of(AlgorithmSpec(kind="sft", loss_agg_mode="token-median"))


def test_the_total_is_policy_minus_entropy_plus_kl() -> None:
    spec = AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo", kl_loss="k2", entropy_loss="default")
    spec = msgspec.structs.replace(spec, kl_loss_args={"kl_coef": 0.5}, entropy_loss_args={"entropy_coef": 0.25})
    objective = Objective.of(spec)
    assert objective.needs_reference
    assert objective.needs_old_logprobs
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
    loss, metrics = objective.terms(tokens, TokenWeights(weights, weights, weights, weights, weights))
    policy, entropy, kl = 0.5, 2.0, (0.125 + 0.5) / 2
    assert loss.item() == pytest.approx(policy - 0.25 * entropy + 0.5 * kl)
    assert metrics["actor/pg_loss"].item() == pytest.approx(policy)
    assert metrics["actor/entropy_loss"].item() == pytest.approx(entropy)
    assert metrics["actor/kl_loss"].item() == pytest.approx(kl)
    assert metrics["actor/final_loss"].item() == pytest.approx(loss.item())


def test_a_configured_norm_stands_for_the_longest_response() -> None:
    assert aggregation.token_weights("seq-mean-token-sum-norm", MASKS, norm=40.0).tolist() == [1 / 120] * 3
    with pytest.raises(ConfigError, match="loss_scale_factor"):
        Aggregation("seq-mean-token-sum-norm", norm=0.0)


@pytest.mark.parametrize("mode", aggregation.AGGREGATIONS)
@pytest.mark.parametrize("expert_mode", [None, "seq-mean-token-mean"])
def test_an_experts_rows_are_aggregated_on_their_own(mode: str, expert_mode: str | None) -> None:
    """of_kind: each kind has the weights that it would have alone."""
    masks = [np.ones(length, np.uint8) for length in (3, 1, 5, 4)]
    experts = [False, True, True, False]
    made = Aggregation(mode, expert_mode=expert_mode).weights(masks, experts)
    for kind, own in ((False, mode), (True, expert_mode or mode)):
        rows = [number for number, expert in enumerate(experts) if expert is kind]
        alone = aggregation.token_weights(own, [masks[number] for number in rows])
        assert made.of_kind[rows].tolist() == alone.tolist()
        assert float((made.mean_of_kind[rows] * [len(masks[number]) for number in rows]).sum()) == pytest.approx(1)
    assert made.whole.tolist() == aggregation.token_weights(mode, masks).tolist()


@pytest.mark.parametrize("mode", aggregation.AGGREGATIONS)
def test_mix_is_the_weighted_sum_of_two_losses_whatever_the_micro_batches(mode: str) -> None:
    tokens = make_loss_tokens(experts=EXPERTS)
    spec = AlgorithmSpec(kind="grpo", policy_loss="mix", policy_loss_args={"mu": 0.3}, loss_agg_mode=mode)
    objective = Objective.of(spec)
    masks = [np.ones(length, np.uint8) for length in LENGTHS]
    weights = objective.aggregation.weights(masks, EXPERTS).map(lambda each: torch.tensor(each)[tokens.sequence])
    expected = 0.0
    for kind, loss, share in ((False, "ppo", 0.7), (True, "sft", 0.3)):
        rows = [number for number, expert in enumerate(EXPERTS) if expert is kind]
        alone, _ = responses_of(tokens, rows)
        own = aggregation.token_weights(mode, [masks[number] for number in rows])
        per_token = POLICY_LOSSES.open(loss).per_token(alone).loss
        expected += share * float((per_token.detach() * torch.tensor(own)[alone.sequence]).sum())
    total, clipped_share = 0.0, 0.0
    for part in ([0, 2], [4], [3, 1]):
        taken, places = responses_of(tokens, part)
        value, metrics = objective.terms(taken, weights.map(lambda each, places=places: each[places]))  # type: ignore[misc]
        total += float(value.detach())
        clipped_share += float(metrics["actor/usual/pg_clipfrac"])
    assert total == pytest.approx(expected, rel=1e-9)
    rollouts, _ = responses_of(tokens, [0, 1, 3])
    assert clipped_share == pytest.approx(
        float(POLICY_LOSSES.open("ppo").per_token(rollouts).metrics["pg_clipfrac"].mean())
    )


@pytest.mark.parametrize(
    ("loss", "arguments", "figure"),
    [("gspo", {}, "ppo_kl_seq"), ("ppo", {"enable_sequence_masking": True}, "seq_mask/mean_sequence_kl")],
)
def test_a_figure_of_responses_is_their_mean_whatever_their_length(
    loss: str, arguments: dict[str, Any], figure: str
) -> None:
    tokens = make_loss_tokens()
    drift = (tokens.old_logprobs - tokens.logprobs).tolist()
    starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    means = [sum(drift[start : start + length]) / length for start, length in zip(starts, LENGTHS, strict=True)]
    expected = pytest.approx(sum(means) / len(means))
    mask = torch.arange(max(LENGTHS))[None, :] < torch.tensor(LENGTHS)[:, None]
    padded = torch.zeros(mask.shape, dtype=torch.float64)
    _, reported = from_tensors.policy_loss(
        loss,
        logprobs=padded.masked_scatter(mask, tokens.logprobs.detach()),
        old_logprobs=padded.masked_scatter(mask, tokens.old_logprobs),
        mask=mask.int(),
        **arguments,
    )
    assert reported[figure] == expected
    objective = Objective.of(AlgorithmSpec(kind="grpo", policy_loss=loss, policy_loss_args=arguments))
    masks = [*(np.ones(length, np.uint8) for length in LENGTHS), np.zeros(3, np.uint8)]
    weights = objective.aggregation.weights(masks).map(lambda each: torch.tensor(each)[tokens.sequence])
    total = 0.0
    for part in ([0, 2], [4], [3, 1]):
        taken, places = responses_of(tokens, part)
        _, metrics = objective.terms(taken, weights.map(lambda each, places=places: each[places]))  # type: ignore[misc]
        total += float(metrics[f"actor/{figure}"])
    assert total == expected


def test_the_entropy_of_mix_leaves_an_experts_rows_out() -> None:
    tokens = make_loss_tokens(experts=EXPERTS)
    spec = AlgorithmSpec(kind="sft", entropy_loss="mix", entropy_loss_args={"entropy_coef": 1.0})
    objective = Objective.of(spec)
    masks = [np.ones(length, np.uint8) for length in LENGTHS]
    weights = objective.aggregation.weights(masks, EXPERTS).map(lambda each: torch.tensor(each)[tokens.sequence])
    loss, metrics = objective.terms(tokens, weights)
    own = tokens.entropies[~tokens.expert].mean()
    assert float(metrics["actor/entropy_loss"]) == pytest.approx(float(own.detach()))
    (gradient,) = torch.autograd.grad(loss, tokens.entropies)
    assert not gradient[tokens.expert].any()
    assert bool((gradient[~tokens.expert] < 0).all())


def test_old_logprobs_are_needed_by_the_parts_that_look_at_them() -> None:
    def needs(**parts: Any) -> bool:
        return Objective.of(AlgorithmSpec(kind="sft", **parts)).needs_old_logprobs

    assert not needs()
    assert not needs(policy_loss="opmd")
    assert needs(policy_loss="gspo")
    assert not needs(policy_loss="ppo", policy_loss_args={"fallback_to_policy_gradient": True})
    assert needs(kl_loss="corrected_k3")
    assert not needs(kl_loss="corrected_k3", kl_loss_args={"kl_coef": 0.0})


def test_a_log_that_calls_the_clip_of_probabilities_ipo_is_trained_on_with_it() -> None:
    spec = AlgorithmSpec(kind="grpo", policy_loss="ipo", policy_loss_args={"ipo_mask_low": 0.3, "kl_tau": 0.5})
    assert Objective.of(spec).policy_loss == ProbabilityClipLoss(mask_low=0.3, kl_tau=0.5)
    assert Objective.of(AlgorithmSpec(kind="ipo", policy_loss="ipo")).policy_loss == IpoLoss()
