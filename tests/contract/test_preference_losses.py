"""What every loss of preferences promises: the value and derivative of its formula, whatever the batching."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from synthetic.models.pair_tokens import Pair, pairs_of, tokens_of

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.learning.losses.policy_loss import Labels, TokenLoss
from rftd.workers.learning.losses.registry import POLICY_LOSSES, tells_labels

Formula = Callable[[Pair, Pair], float]
"""Of one pair: the policy's log-probabilities and the reference's."""


def cost(z: float) -> float:
    """-log s(z)."""
    return math.log1p(math.exp(-z)) if z >= 0 else -z + math.log1p(math.exp(z))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def moved(policy: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(policy, reference, strict=True)]


def dpo(beta: float = 0.1, wrong: float = 0.0) -> Formula:
    def formula(policy: Pair, reference: Pair) -> float:
        z = beta * (sum(moved(policy[0], reference[0])) - sum(moved(policy[1], reference[1])))
        return (1 - wrong) * cost(z) + wrong * cost(-z)

    return formula


def ipo(beta: float = 0.1, of: Callable[[Sequence[float]], float] = mean) -> Formula:
    def formula(policy: Pair, reference: Pair) -> float:
        return (of(moved(policy[0], reference[0])) - of(moved(policy[1], reference[1])) - 1 / (2 * beta)) ** 2

    return formula


def simpo(beta: float = 2.0, gamma: float = 1.0, wrong: float = 0.0) -> Formula:
    def formula(policy: Pair, reference: Pair) -> float:
        z = beta * mean(policy[0]) - beta * mean(policy[1]) - gamma
        return (1 - wrong) * cost(z) + wrong * cost(-z)

    return formula


def orpo(beta: float = 0.1) -> Formula:
    def odds(logprobs: Sequence[float]) -> float:
        p = math.exp(min(mean(logprobs), -1e-6))
        return p / (1 - p)

    def formula(policy: Pair, reference: Pair) -> float:
        return -mean(policy[0]) + beta * cost(math.log(odds(policy[0]) / odds(policy[1])))

    return formula


def kto(beta: float = 0.1, desirable: float = 1.0, undesirable: float = 1.0) -> Formula:
    """KTO's loss where the policy has not moved at all."""

    def formula(policy: Pair, reference: Pair) -> float:
        gain, loss = (beta * sum(moved(p, r)) for p, r in zip(policy, reference, strict=True))
        return (desirable * (1 - math.exp(-cost(gain))) + undesirable * (1 - math.exp(-cost(-loss)))) / 2

    return formula


FORMULAS: list[tuple[str, dict[str, Any], Formula]] = [
    ("dpo", {}, dpo()),
    ("dpo", {"beta": 1.0, "label_smoothing": 0.1}, dpo(1.0, 0.1)),
    ("ipo", {}, ipo()),
    ("ipo", {"beta": 0.5, "per_token_mean": False}, ipo(0.5, sum)),
    ("simpo", {}, simpo()),
    ("simpo", {"beta": 10.0, "gamma": 0.0, "label_smoothing": 0.2}, simpo(10.0, 0.0, 0.2)),
    ("orpo", {}, orpo()),
    ("orpo", {"beta": 2.0}, orpo(2.0)),
    ("kto", {}, kto()),
    ("kto", {"beta": 0.7, "desirable_weight": 1.3, "undesirable_weight": 0.2}, kto(0.7, 1.3, 0.2)),
]
NAMES = [name for name in POLICY_LOSSES.names() if tells_labels(name)]
every_loss = pytest.mark.parametrize("name", NAMES)


def flat(pairs: Sequence[Pair]) -> torch.Tensor:
    return torch.tensor([x for pair in pairs for side in pair for x in side], dtype=torch.float64)


def lengths_of(pairs: Sequence[Pair]) -> list[int]:
    return [len(side) for pair in pairs for side in pair]


def of(name: str, policy: Sequence[Pair], reference: Sequence[Pair], **arguments: Any) -> tuple[TokenLoss, list[float]]:
    """What the loss gives for a batch of these pairs, and the gradient by their log-probabilities."""
    logprobs = flat(policy).requires_grad_()
    made = POLICY_LOSSES.open(name, arguments).per_token(tokens_of(logprobs, flat(reference), lengths_of(policy)))
    (gradient,) = torch.autograd.grad(made.loss.sum(), logprobs)
    return made, gradient.tolist()


def below_zero(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs as log-probabilities that are not near 0, where odds have no end."""
    return [tuple([-0.05 - abs(x) for x in side] for side in pair) for pair in pairs]  # type: ignore[misc]


def unflat(values: Sequence[float], like: Sequence[Pair]) -> list[Pair]:
    left = iter(values)
    return [([next(left) for _ in chosen], [next(left) for _ in rejected]) for chosen, rejected in like]


def test_every_loss_of_pairs_has_a_formula() -> None:
    assert set(NAMES) == {name for name, _, _ in FORMULAS}


@pytest.mark.parametrize("drift", [0.0, 0.5, 5.0])
@pytest.mark.parametrize(
    ("name", "arguments", "formula"), FORMULAS, ids=[f"{name}-{arguments}" for name, arguments, _ in FORMULAS]
)
def test_values_and_derivatives_are_those_of_the_formula(
    name: str, arguments: dict[str, Any], formula: Formula, drift: float
) -> None:
    """The mean over pairs, and central differences of it."""
    policy, reference = (below_zero(each) for each in pairs_of(7, 4, drift=drift))

    def batch(values: Sequence[float]) -> float:
        pairs = zip(unflat(values, policy), reference, strict=True)
        return sum(formula(*each) for each in pairs) / len(policy)

    made, gradient = of(name, policy, reference, **arguments)
    at = flat(policy).tolist()
    assert made.summed
    assert made.loss.sum().item() == pytest.approx(batch(at), rel=1e-9, abs=1e-12)
    step = 1e-5
    for place, slope in enumerate(gradient):
        up, down = ([x + sign * step * (n == place) for n, x in enumerate(at)] for sign in (1, -1))
        assert slope == pytest.approx((batch(up) - batch(down)) / (2 * step), rel=1e-5, abs=1e-8)


@every_loss
def test_the_chosen_response_becomes_likelier_than_the_rejected_one(name: str) -> None:
    reference = below_zero(pairs_of(3, 3)[1])
    made, gradient = of(name, reference, reference)
    left = iter(gradient)
    for chosen, rejected in reference:
        assert all(next(left) < 0 for _ in chosen)
        assert all(next(left) > 0 for _ in rejected)
    assert {f"{name}_loss", "chosen_reward", "rejected_reward", "accuracy_mean"} <= made.metrics.keys()
    for key, value in made.metrics.items():
        assert value.shape == made.loss.shape, key
        assert not value.requires_grad, key
    assert made.metrics[f"{name}_loss"].sum().item() == pytest.approx(made.loss.sum().item())


@every_loss
def test_micro_batches_add_up_in_any_order(name: str) -> None:
    policy, reference = (below_zero(each) for each in pairs_of(4, 5))
    whole, gradient = of(name, policy, reference)
    wanted = unflat(gradient, policy)
    loss = POLICY_LOSSES.open(name)
    total = 0.0
    for part in ([3, 1], [0], [4, 2]):
        pairs = [policy[number] for number in part]
        logprobs = flat(pairs).requires_grad_()
        ref = flat([reference[number] for number in part])
        made = loss.per_token(tokens_of(logprobs, ref, lengths_of(pairs), in_batch=5)).loss.sum()
        (found,) = torch.autograd.grad(made, logprobs)
        assert found.tolist() == pytest.approx([x for number in part for side in wanted[number] for x in side])
        total += made.item()
    assert total == pytest.approx(whole.loss.sum().item(), rel=1e-12)


@every_loss
@pytest.mark.parametrize(("chosen", "rejected"), [(-1e-9, -90.0), (-90.0, -1e-9), (0.0, 0.0), (-1e4, -1e4)])
def test_extreme_probabilities_are_finite_in_float32(name: str, chosen: float, rejected: float) -> None:
    logprobs = torch.tensor([chosen, rejected], requires_grad=True)
    made = POLICY_LOSSES.open(name).per_token(tokens_of(logprobs, torch.tensor([-2.0, -2.0]), [1, 1]))
    (gradient,) = torch.autograd.grad(made.loss.sum(), logprobs)
    assert bool(made.loss.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in made.metrics.values())


@every_loss
def test_a_pair_without_trained_tokens_counts_nowhere(name: str) -> None:
    policy, reference = (below_zero(each) for each in pairs_of(5, 1))
    padded = tokens_of(flat(policy), flat(reference), [*lengths_of(policy), 0, 0], in_batch=1)
    found = POLICY_LOSSES.open(name).per_token(padded).loss.sum().item()
    assert found == pytest.approx(of(name, policy, reference)[0].loss.sum().item(), rel=1e-12)


@every_loss
def test_what_it_needs_is_asked_for_and_nothing_else_is_looked_at(name: str) -> None:
    loss = POLICY_LOSSES.open(name)
    policy, reference = (below_zero(each) for each in pairs_of(6, 2))
    tokens = tokens_of(flat(policy), flat(reference), lengths_of(policy))
    with pytest.raises(TrainError, match="without labels" if name == "kto" else "without pairs"):
        loss.per_token(dataclasses.replace(tokens, pairs=None, labels=None))
    blind = dataclasses.replace(tokens, ref_logprobs=None)
    if getattr(loss, "needs_reference", False):
        with pytest.raises(TrainError, match="without a reference"):
            loss.per_token(blind)
    else:
        assert loss.per_token(blind).loss.equal(loss.per_token(tokens).loss)


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("ipo", {"beta": 0.0}, "beta"),
        ("simpo", {"beta": -1.0}, "beta"),
        ("simpo", {"gamma": -1.0}, "gamma"),
        ("simpo", {"label_smoothing": 0.5}, "label_smoothing"),
        ("orpo", {"beta": -0.1}, "beta"),
        ("kto", {"beta": 0.0}, "beta"),
        ("kto", {"undesirable_weight": -1.0}, "undesirable_weight"),
    ],
)
def test_arguments_that_make_no_loss_are_refused(name: str, arguments: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        POLICY_LOSSES.open(name, arguments)
    assert field in str(caught.value.field)


def test_kto_measures_from_how_far_the_policy_has_moved_at_all() -> None:
    policy, reference = (below_zero(each) for each in pairs_of(8, 3))
    logprobs = flat(policy).requires_grad_()
    kl = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    tokens = dataclasses.replace(tokens_of(logprobs, flat(reference), lengths_of(policy)), reference_kl=kl)
    made = POLICY_LOSSES.open("kto", {"beta": 0.5}).per_token(tokens)
    expected = 0.0
    for pair, ref in zip(policy, reference, strict=True):
        for sign, side, base in zip((1, -1), pair, ref, strict=True):
            z = sign * 0.5 * (sum(moved(side, base)) - 0.8)
            expected += (1 - 1 / (1 + math.exp(-z))) / (2 * len(policy))
    assert made.loss.sum().item() == pytest.approx(expected, rel=1e-9)
    assert made.metrics["reference_kl"].sum().item() == pytest.approx(0.8)


def test_kto_takes_responses_without_a_partner() -> None:
    """Three desirable ones and one that is not: the mean over responses, each kind with its weight."""
    policy, reference = (below_zero(each) for each in pairs_of(9, 2))
    logprobs = flat(policy).requires_grad_()
    desirable = torch.tensor([True, True, False, True])
    tokens = dataclasses.replace(
        tokens_of(logprobs, flat(reference), lengths_of(policy)),
        pairs=None,
        labels=Labels(desirable=desirable, in_batch=4, desirable_in_batch=3),
    )
    made = POLICY_LOSSES.open("kto", {"beta": 0.5, "desirable_weight": 0.4}).per_token(tokens)
    sides = [
        (side, base) for pair, ref in zip(policy, reference, strict=True) for side, base in zip(pair, ref, strict=True)
    ]
    rewards = [0.5 * sum(moved(*each)) for each in sides]
    losses = [
        0.4 * (1 - math.exp(-cost(reward))) if good else 1 - math.exp(-cost(-reward))
        for reward, good in zip(rewards, desirable.tolist(), strict=True)
    ]
    assert made.loss.sum().item() == pytest.approx(mean(losses), rel=1e-9)
    found = {name: value.sum().item() for name, value in made.metrics.items()}
    assert found["chosen_reward"] == pytest.approx(mean([rewards[0], rewards[1], rewards[3]]))
    assert found["rejected_reward"] == pytest.approx(rewards[2])
    assert "accuracy_mean" not in found, "nothing is told apart"
    alone = dataclasses.replace(tokens, labels=Labels(desirable=~desirable & False, in_batch=4, desirable_in_batch=0))
    assert "chosen_reward" not in POLICY_LOSSES.open("kto").per_token(alone).metrics
