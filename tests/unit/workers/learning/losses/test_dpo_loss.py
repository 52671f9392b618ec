"""The loss of preferences: against a loop over pairs, against TRL, and what batching must not change."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic.models.pair_tokens import Pair, pairs_of, tokens_of

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.learning.losses.policy_loss import LossTokens
from rftd.workers.learning.losses.preference_losses import DpoLoss
from rftd.workers.learning.losses.registry import POLICY_LOSSES

GOLDEN = Path(__file__).parents[4] / "golden" / "losses" / "trl_dpo.json"


@dataclass(frozen=True)
class Result:
    loss: float
    gradient: list[list[float]]
    """By the log-probabilities, chosen and rejected of each pair in turn."""
    metrics: dict[str, float]


def run(loss: DpoLoss, policy: Sequence[Pair], reference: Sequence[Pair]) -> Result:
    parts = [part for pair in policy for part in pair]
    lengths = [len(part) for part in parts]
    logprobs = torch.tensor([x for part in parts for x in part], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([x for pair in reference for part in pair for x in part], dtype=torch.float64)
    made = loss.per_token(tokens_of(logprobs, ref, lengths))
    assert made.summed
    value = made.loss.sum()
    value.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    gradient = [part.tolist() for part in logprobs.grad.split(lengths)]
    return Result(value.item(), gradient, {name: float(each.sum()) for name, each in made.metrics.items()})


def looped(policy: Sequence[Pair], reference: Sequence[Pair], *, beta: float, smoothing: float) -> Result:
    """The formula of the page, pair by pair, with its derivative by hand."""
    losses, chosen_rewards, rejected_rewards, right = [], [], [], []
    gradient: list[list[float]] = []
    for (chosen, rejected), (ref_chosen, ref_rejected) in zip(policy, reference, strict=True):
        good = beta * sum(a - b for a, b in zip(chosen, ref_chosen, strict=True))
        bad = beta * sum(a - b for a, b in zip(rejected, ref_rejected, strict=True))
        z = good - bad

        def minus_log_sigmoid(x: float) -> float:
            return math.log1p(math.exp(-x)) if x >= 0 else -x + math.log1p(math.exp(x))

        losses.append((1 - smoothing) * minus_log_sigmoid(z) + smoothing * minus_log_sigmoid(-z))
        up, down = math.exp(-minus_log_sigmoid(z)), math.exp(-minus_log_sigmoid(-z))  # s(z), s(-z)
        slope = beta * (-(1 - smoothing) * down + smoothing * up) / len(policy)
        gradient += [[slope] * len(chosen), [-slope] * len(rejected)]
        chosen_rewards.append(good)
        rejected_rewards.append(bad)
        right.append(float(good > bad))
    figures = {
        "dpo_loss": losses,
        "chosen_reward": chosen_rewards,
        "rejected_reward": rejected_rewards,
        "accuracy_mean": right,
    }
    return Result(float(np.mean(losses)), gradient, {name: float(np.mean(each)) for name, each in figures.items()})


def assert_same(one: Result, two: Result) -> None:
    assert one.loss == pytest.approx(two.loss, rel=1e-9, abs=1e-12)
    for a, b in zip(one.gradient, two.gradient, strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)
    assert one.metrics == pytest.approx(two.metrics, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "count", "drift"), [(0, 1, 0.5), (1, 5, 0.5), (2, 7, 20.0), (3, 4, 0.0)])
def test_the_loss_is_the_mean_over_pairs(seed: int, count: int, drift: float, beta: float, smoothing: float) -> None:
    policy, reference = pairs_of(seed, count, drift=drift)
    got = run(DpoLoss(beta=beta, label_smoothing=smoothing), policy, reference)
    assert_same(got, looped(policy, reference, beta=beta, smoothing=smoothing))


def test_pairs_do_not_add_up_before_the_logistic_function() -> None:
    """The known defect of others: one margin for a whole micro-batch."""
    policy, reference = [([-1.0], [-3.0]), ([-5.0], [-1.0])], [([-2.0], [-2.0]), ([-2.0], [-2.0])]
    got = run(DpoLoss(beta=1.0), policy, reference).loss
    assert got == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(4))) / 2)
    assert got != pytest.approx(math.log1p(math.exp(2)))


def test_at_the_reference_the_gradient_is_half() -> None:
    _, reference = pairs_of(3, 2)
    got = run(DpoLoss(beta=0.2), reference, reference)
    assert got.loss == pytest.approx(math.log(2))
    assert got.metrics["accuracy_mean"] == 0.0
    assert got.gradient[0] == pytest.approx([-0.2 * 0.5 / 2] * len(reference[0][0]))


@pytest.mark.parametrize("far", [-1e5, 1e5])
def test_far_from_the_reference_everything_is_finite(far: float) -> None:
    got = run(DpoLoss(beta=1.0, label_smoothing=0.1), [([far], [0.0])], [([0.0], [0.0])])
    assert all(math.isfinite(x) for x in (got.loss, *got.gradient[0], *got.gradient[1], *got.metrics.values()))


def test_micro_batches_add_up() -> None:
    policy, reference = pairs_of(4, 5)
    whole, loss = run(DpoLoss(), policy, reference), DpoLoss()
    parts = []
    for pair, ref in zip(policy, reference, strict=True):
        lengths = [len(part) for part in pair]
        flat = [torch.tensor([*each[0], *each[1]], dtype=torch.float64) for each in (pair, ref)]
        parts.append(float(loss.per_token(tokens_of(flat[0], flat[1], lengths, in_batch=5)).loss.sum()))
    assert sum(parts) == pytest.approx(whole.loss, rel=1e-12)


def test_a_pair_without_trained_tokens_counts_nowhere() -> None:
    policy, reference = pairs_of(5, 1)
    lengths = [len(policy[0][0]), len(policy[0][1]), 0, 0]
    flat = [torch.tensor([*each[0], *each[1]], dtype=torch.float64) for each in (policy[0], reference[0])]
    got = float(DpoLoss().per_token(tokens_of(flat[0], flat[1], lengths, in_batch=1)).loss.sum())
    assert got == pytest.approx(run(DpoLoss(), policy, reference).loss, rel=1e-12)


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"] if GOLDEN.exists() else [])
def test_it_is_trls_loss(case: dict[str, Any]) -> None:
    got = run(DpoLoss(**case["arguments"]), case["policy"], case["reference"])
    assert got.loss == pytest.approx(case["loss"], rel=1e-6, abs=1e-8)
    for a, b in zip(got.gradient, case["gradient"], strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-8)
    assert {name: got.metrics[name] for name in case["metrics"]} == pytest.approx(case["metrics"], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"beta": 0.0}, "beta"), ({"label_smoothing": 0.5}, "label_smoothing"), ({"label_smoothing": -0.1}, "smoothing")],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        POLICY_LOSSES.open("dpo", arguments)
    assert field in str(caught.value.field)


def test_without_pairs_it_says_so() -> None:
    zeros = torch.zeros(2)
    tokens = LossTokens(
        logprobs=zeros,
        entropies=zeros,
        old_logprobs=zeros,
        ref_logprobs=zeros,
        advantages=zeros,
        expert=zeros.bool(),
        sequence=torch.arange(2),
        sequences=2,
    )
    with pytest.raises(TrainError, match="without pairs"):
        DpoLoss().per_token(tokens)
