"""Each policy loss against its formula, token by token and without torch: values and derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from synthetic.models.loss_tokens import EXPERTS, LENGTHS, make_loss_tokens

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses import from_tensors
from rftd.workers.learning.losses.mix import MixChordLoss
from rftd.workers.learning.losses.policy_loss import LossTokens
from rftd.workers.learning.losses.registry import POLICY_LOSSES, tells_labels


@dataclass(frozen=True)
class Token:
    """What the formulas call lp, old, A and s: the mean of lp - old over the token's response."""

    lp: float
    old: float
    a: float
    s: float
    expert: bool = False
    others: tuple[tuple[float, float], ...] = ()
    """lp and old of each token of its response, itself too."""

    @property
    def x(self) -> float:
        return max(-20.0, min(20.0, self.lp - self.old))

    @property
    def r(self) -> float:
        return math.exp(self.x)

    @property
    def slope(self) -> float:
        """The slope of r by lp: 0 where it is clamped."""
        return self.r if abs(self.lp - self.old) <= 20 else 0.0


Formula = Callable[[Token], tuple[float, float]]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def ppo(low: float = 0.2, high: float = 0.2, c: float = 3.0) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        plain, clipped = -t.a * t.r, -t.a * clip(t.r, 1 - low, 1 + high)
        value = max(plain, clipped)
        slope = -t.a * t.slope if plain >= clipped else 0.0
        if t.a < 0 and value > -t.a * c:
            return -t.a * c, 0.0
        return value, slope

    return formula


def gspo(low: float = 0.0003, high: float = 0.0004) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        s = math.exp(clip(t.s, -20, 20))
        plain, clipped = -t.a * s, -t.a * clip(s, 1 - low, 1 + high)
        return max(plain, clipped), plain if plain >= clipped else 0.0

    return formula


def gmpo(low: float = 0.4, high: float = 0.4) -> Formula:
    """The slope is that of the sum over the response, each of whose tokens has the same value."""

    def followed(t: Token, drift: float) -> float:
        return min(drift, high) if t.a > 0 else max(drift, -low)

    def formula(t: Token) -> tuple[float, float]:
        drifts = [followed(t, clip(lp - old, -20, 20)) for lp, old in t.others]
        s = math.exp(clip(sum(drifts) / len(drifts), -20, 20))
        return -t.a * s, -t.a * s if followed(t, t.x) == t.lp - t.old else 0.0

    return formula


def vespo(t: Token, k: tuple[float, float], decay: tuple[float, float]) -> float:
    """phi of the product of the response's ratios, with the values for A >= 0 and A < 0."""
    log_w = clip(sum(clip(lp - old, -20, 20) for lp, old in t.others), math.log(1e-8), 20)
    side = 0 if t.a >= 0 else 1
    exponent = decay[side] + k[side] * log_w - decay[side] * math.exp(log_w)
    return math.exp(exponent) if exponent > -700 else 0.0


def weighted(weight: Callable[[Token], float]) -> Formula:
    """-A sg(w) lp."""
    return lambda t: (-t.a * weight(t) * t.lp, -t.a * weight(t))


def cispo_masked(t: Token) -> tuple[float, float]:
    if (t.a > 0 and t.r > 1.28) or (t.a < 0 and t.r < 0.5):
        return 0.0, 0.0
    return weighted(lambda t: clip(t.r, 0, 1.28))(t)


def gate(t: Token, positive: float, negative: float) -> float:
    tau = positive if t.a > 0 else negative
    z = tau * (t.r - 1)
    return 4 / tau * (1 / (1 + math.exp(-z)) if z > -700 else 0.0)


def sapo(positive: float = 1.0, negative: float = 1.05) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        half = (positive if t.a > 0 else negative) * (t.r - 1) / 2
        fade = 1 / math.cosh(half) ** 2 if abs(half) < 350 else 0.0
        return -t.a * gate(t, positive, negative), -t.a * fade * t.slope

    return formula


def sppo(epsilon: float) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        inside = 1 / (1 + epsilon) <= t.r <= 1 + epsilon
        return (-t.a * (t.lp - t.old), -t.a) if inside else (0.0, 0.0)

    return formula


def trust(masked: Callable[[Token, float], bool], kl: float = 1e-3, tau: float = 1.0) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        keep = not masked(t, math.exp(t.lp) - math.exp(t.old))
        x = t.lp - t.old
        return -keep * tau * t.a * t.r + kl * x * x, -keep * tau * t.a * t.slope + 2 * kl * x

    return formula


def phi(t: Token, cutoff: float = 1.0) -> tuple[float, float]:
    p = math.exp(t.lp)
    weight = p * (1 - p)
    return -weight * min(t.lp, math.log(cutoff)), -weight if cutoff == 1 or t.lp <= math.log(cutoff) else 0.0


def sft(t: Token) -> tuple[float, float]:
    return -t.lp, -1.0


def mixed(usual: Formula, expert: Formula, mu: float) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        value, slope = (expert if t.expert else usual)(t)
        share = mu if t.expert else 1 - mu
        return share * value, share * slope

    return formula


def echo(own: Formula, alpha: float) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        return (-alpha * t.lp, -alpha) if t.expert else own(t)

    return formula


def rec(
    *,
    inside: Callable[[Token], bool] = lambda t: True,
    weight: Callable[[Token], float] = lambda t: 1.0,
    regularizer: Callable[[Token], tuple[float, float]] = lambda t: (0.0, 0.0),
) -> Formula:
    def formula(t: Token) -> tuple[float, float]:
        value, slope = (-t.a * weight(t) * t.lp, -t.a * weight(t)) if inside(t) else (0.0, 0.0)
        return value + regularizer(t)[0], slope + regularizer(t)[1]

    return formula


def one_side(ratio: float, a: float) -> bool:
    return (a >= 0 and ratio <= 1.2) or (a <= 0 and ratio >= 0.8)


def ring(t: Token) -> bool:
    return 0.8 <= t.r <= 1.2 or (t.a >= 0 and t.r <= 0.4) or (t.a <= 0 and t.r >= 3.0)


FORMULAS: list[tuple[str, dict[str, Any], Formula]] = [
    ("ppo", {}, ppo()),
    ("ppo", {"clip_range": 0.1}, ppo(0.1, 0.1)),
    ("ppo", {"clip_range_low": 0.2, "clip_range_high": 0.28, "clip_ratio_c": 1.5}, ppo(0.2, 0.28, 1.5)),
    ("gspo", {}, gspo()),
    ("gspo", {"clip_range": 0.3}, gspo(0.3, 0.3)),
    ("gmpo", {}, gmpo()),
    ("gmpo", {"clip_range_low": 0.1, "clip_range_high": 1.0}, gmpo(0.1, 1.0)),
    ("vespo", {}, weighted(lambda t: vespo(t, (2.0, 3.0), (3.0, 2.0)))),
    ("vespo", {"k_pos": 1.0, "lambda_pos": 1.0, "k_neg": 0.0, "lambda_neg": 0.5},
     weighted(lambda t: vespo(t, (1.0, 0.0), (1.0, 0.5)))),
    ("cispo", {}, weighted(lambda t: clip(t.r, 0, 1.28))),
    ("cispo", {"clip_range_low": 0.1, "clip_range_high": 4.0}, weighted(lambda t: clip(t.r, 0.9, 5.0))),
    ("cispo", {"enable_mask_clip": True, "mask_clip_range_low": 0.5}, cispo_masked),
    ("sapo", {}, sapo()),
    ("sapo", {"tau_pos": 0.5, "tau_neg": 2.0}, sapo(0.5, 2.0)),
    ("sapo", {"through_gate": False}, weighted(lambda t: gate(t, 1.0, 1.05))),
    ("topr", {}, weighted(lambda t: 1.0 if t.a > 0 else clip(t.r, 0, 1))),
    ("topr", {"advantage_threshold": 0.5}, weighted(lambda t: 1.0 if t.a > 0.5 else clip(t.r, 0, 1))),
    ("opmd", {}, weighted(lambda t: 0.5)),
    ("opmd", {"tau": 0.0}, weighted(lambda t: 1.0)),
    ("sppo", {}, sppo(0.3)),
    ("sppo", {"epsilon": 0.05}, sppo(0.05)),
    ("reinforce", {}, weighted(lambda t: min(t.r, 1.02))),
    ("reinforce", {"epsilon_high": 1.0}, weighted(lambda t: min(t.r, 2.0))),
    ("importance_sampling", {}, lambda t: (-t.a * t.r, -t.a * t.slope)),
    ("m2po", {}, lambda t: (-t.a * t.r, -t.a * t.slope)),
    ("clip_cov", {}, ppo(c=math.inf)),  # of which tokens: test_entropy_covariance.py
    ("clip_cov", {"clip_range_low": 0.1, "clip_range_high": 0.3}, ppo(0.1, 0.3, math.inf)),
    ("kl_cov", {}, lambda t: (-t.a * t.r, -t.a * t.slope)),
    ("dppo", {}, trust(lambda t, change: (t.a > 0 and change > 0.2) or (t.a < 0 and change < -0.2))),
    ("dppo", {"dppo_mask_low": 0.01, "dppo_mask_high": 0.3, "adv_tau": 2.0, "kl_tau": 0.1},
     trust(lambda t, change: (t.a > 0 and change > 0.3) or (t.a < 0 and change < -0.01), 0.1, 2.0)),
    ("probability_clip", {}, trust(lambda t, change: abs(change) > 0.1)),
    ("sft", {}, sft),
    ("sft", {"weighted": True}, weighted(lambda t: 1.0)),
    ("sft_is", {}, lambda t: (-math.exp(t.lp) * t.lp, -math.exp(t.lp))),
    ("sft_phi", {}, phi),
    ("sft_phi", {"cutoff_prob": 0.3}, lambda t: phi(t, 0.3)),
    ("mix", {}, mixed(ppo(), sft, 0.1)),
    ("mix", {"mu": 0.7, "clip_range": 0.05}, mixed(ppo(0.05, 0.05), sft, 0.7)),
    ("mix_chord", {}, mixed(ppo(), phi, 0.1)),
    ("mix_chord", {"mu_warmup_steps": 4, "mu_peak": 0.8, "enable_phi_function": False}, mixed(ppo(), sft, 0.2)),
    ("echo", {}, echo(ppo(), 0.1)),
    ("echo", {"alpha": 2.0, "clip_range": 0.05}, echo(ppo(0.05, 0.05), 2.0)),
    ("rec", {}, rec()),
    ("rec", {"clip_mode": "two-side"}, rec(inside=lambda t: 0.8 <= t.r <= 1.2)),
    ("rec", {"clip_mode": "one-side"}, rec(inside=lambda t: one_side(t.r, t.a))),
    ("rec", {"clip_mode": "gspo-one-side"}, rec(inside=lambda t: one_side(math.exp(t.s), t.a))),
    ("rec", {"clip_mode": "ring"}, rec(inside=ring)),
    ("rec", {"weight": "importance_sampling"}, rec(weight=lambda t: t.r)),
    ("rec", {"weight": "gspo_importance_sampling"}, rec(weight=lambda t: math.exp(clip(t.s, -20, 20)))),
    ("rec", {"weight": "advantage", "temp": 0.5}, rec(weight=lambda t: math.exp(min(20.0, t.a / 0.5)))),
    ("rec", {"regularizer": "k2", "regularizer_coef": 0.3},
     rec(regularizer=lambda t: (0.3 * (t.lp - t.old) ** 2, 0.6 * (t.lp - t.old)))),
    ("rec", {"regularizer": "forward-kl", "regularizer_coef": 0.3, "clip_mode": "two-side"},
     rec(inside=lambda t: 0.8 <= t.r <= 1.2, regularizer=lambda t: (-0.3 * t.lp, -0.3))),
]  # fmt: skip


def listed(tokens: LossTokens) -> list[Token]:
    logprobs, old = tokens.logprobs.tolist(), tokens.old_logprobs.tolist()
    made, start = [], 0
    for length in LENGTHS:
        s = sum(logprobs[i] - old[i] for i in range(start, start + length)) / length
        for i in range(start, start + length):
            others = tuple((logprobs[j], old[j]) for j in range(start, start + length))
            made.append(Token(logprobs[i], old[i], float(tokens.advantages[i]), s, bool(tokens.expert[i]), others))
        start += length
    return made


@pytest.mark.parametrize("scale", [0.0, 0.05, 0.4, 3.0, 40.0])
@pytest.mark.parametrize(
    ("name", "arguments", "formula"), FORMULAS, ids=lambda each: getattr(each, "__qualname__", str(each))[:60]
)
def test_values_and_derivatives_are_those_of_the_formula(
    name: str, arguments: dict[str, Any], formula: Formula, scale: float
) -> None:
    tokens = make_loss_tokens(scale=scale, experts=EXPERTS if name.startswith(("mix", "echo")) else ())
    made = POLICY_LOSSES.open(name, arguments).per_token(tokens)
    made.loss.sum().backward()  # type: ignore[no-untyped-call]
    expected = [formula(token) for token in listed(tokens)]
    assert tokens.logprobs.grad is not None
    np.testing.assert_allclose(made.loss.detach(), [value for value, _ in expected], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(tokens.logprobs.grad, [slope for _, slope in expected], rtol=1e-7, atol=1e-12)


def test_every_loss_has_a_formula() -> None:
    table = {name for name in POLICY_LOSSES.names() if POLICY_LOSSES.builtin(name)}
    of_preferences = {name for name in table if tells_labels(name)}
    assert table - of_preferences == {name for name, _, _ in FORMULAS}


def test_a_token_that_drifted_moves_sapo_less() -> None:
    """The published figures: a token weighs 1 where nothing has changed, and 0.03 at eight times its probability."""
    weights = []
    for ratio in (1.0, 8.0):
        logprobs = torch.tensor([[math.log(0.1 * ratio)]], dtype=torch.float64, requires_grad=True)
        old = torch.full_like(logprobs, math.log(0.1))
        loss, _ = from_tensors.policy_loss(
            "sapo", logprobs=logprobs, old_logprobs=old, advantages=torch.ones(1), mask=torch.ones(1, 1)
        )
        (gradient,) = torch.autograd.grad(loss, logprobs)
        weights.append(-gradient.item())
    assert weights == pytest.approx([1.0, 0.029], abs=1e-3)


def test_mu_of_chord_rises_falls_and_stays() -> None:
    loss = MixChordLoss(mu_warmup_steps=2, mu_decay_steps=10, mu_peak=0.5, mu_valley=0.02)
    assert [loss.mu(step) for step in (0, 1, 2)] == [0.0, 0.25, 0.5]
    assert loss.mu(3) == pytest.approx(0.48825, abs=1e-5)
    assert loss.mu(12) == loss.mu(99) == 0.02
    assert MixChordLoss().mu(1) == 0.1


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("gspo", {"clip_range_low": -1}, "clip_range_low"),
        ("gspo", {"loss_agg_mode": "seq-mean"}, "loss_agg_mode"),
        ("vespo", {"k_neg": -1}, "k_neg"),
        ("gmpo", {"clip_range_low": -0.1}, "clip_range_low"),
        ("gmpo", {"loss_agg_mode": "seq-mean"}, "loss_agg_mode"),
        ("cispo", {"clip_range_high": float("nan")}, "clip_range_high"),
        ("sapo", {"tau_pos": 0}, "tau_pos"),
        ("sapo", {"tau_pos": 2.0}, "tau_neg"),
        ("sapo", {"loss_agg_mode": "seq-mean"}, "loss_agg_mode"),
        ("opmd", {"tau": -1}, "tau"),
        ("sppo", {"epsilon": -0.1}, "epsilon"),
        ("reinforce", {"epsilon_high": -0.1}, "epsilon_high"),
        ("m2po", {"m2_threshold": -1}, "m2_threshold"),
        ("m2po", {"log_ratio_clip": 0}, "log_ratio_clip"),
        ("clip_cov", {"clip_range": -1}, "clip_range"),
        ("clip_cov", {"clip_cov_ratio": 2}, "clip_cov_ratio"),
        ("clip_cov", {"clip_cov_lb": 5}, "clip_cov_ub"),
        ("kl_cov", {"kl_cov_ratio": 0}, "kl_cov_ratio"),
        ("kl_cov", {"ppo_kl_coef": -1}, "ppo_kl_coef"),
        ("dppo", {"kl_tau": -1}, "kl_tau"),
        ("probability_clip", {"mask_low": -1}, "mask_low"),
        ("sft_phi", {"cutoff_prob": 0}, "cutoff_prob"),
        ("mix", {"mu": 1.5}, "mu"),
        ("mix", {"clip_range": -1}, "clip_range"),
        ("mix_chord", {"mu_peak": 2}, "mu_peak"),
        ("rec", {"clip_mode": "three-side"}, "clip_mode"),
        ("rec", {"temp": 0}, "temp"),
    ],
)
def test_arguments_that_make_no_loss_are_refused(name: str, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        POLICY_LOSSES.open(name, arguments)
    assert raised.value.field
    assert field in raised.value.field


def test_arguments_of_trinity_that_weigh_micro_batches_have_no_effect() -> None:
    theirs = {"use_dynamic_bsz": False, "ppo_mini_batch_size": 40, "ngpus_trainer": 4, "train_batch_size_expert": 8}
    tokens = make_loss_tokens(experts=EXPERTS)
    given = POLICY_LOSSES.open("mix", {"mu": 0.1, **theirs}).per_token(tokens)
    assert given.loss.equal(POLICY_LOSSES.open("mix").per_token(tokens).loss)
