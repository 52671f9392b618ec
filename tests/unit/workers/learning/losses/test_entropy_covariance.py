"""clip_cov and kl_cov against verl's steps written as loops: which tokens, their losses and their gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from synthetic.models.loss_tokens import make_loss_tokens

from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.corrections.correction import Corrected
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossTokens

LENGTHS = (40, 1, 25, 60, 14)


def tokens_with(seed: int, scale: float, experts: tuple[bool, ...] = ()) -> LossTokens:
    return make_loss_tokens(seed, scale=scale, lengths=LENGTHS, experts=experts)


def corrected(chain: Chain, tokens: LossTokens, order: Any = None) -> Corrected:
    """What the pass of one mini-batch gives, for responses in this order."""
    at = slice(None) if order is None else order
    batch = BatchTokens(
        old_logprobs=tokens.old_logprobs[at],
        advantages=tokens.advantages[at],
        rewards=torch.zeros(tokens.sequences),
        expert=tokens.expert[at],
        sequence=tokens.sequence[at],
        sequences=tokens.sequences,
        logprobs=tokens.logprobs.detach()[at],
    )
    return chain.of_mini_batch(batch, Corrected())


def objective_of(name: str, **arguments: Any) -> Objective:
    return Objective.of(AlgorithmSpec(kind="grpo", policy_loss=name, policy_loss_args=arguments))


def covariance_of(tokens: LossTokens) -> list[float]:
    logprobs = tokens.logprobs.tolist()
    advantages = tokens.advantages.tolist()
    mean_of_logprobs = math.fsum(logprobs) / len(logprobs)
    mean_of_advantages = math.fsum(advantages) / len(advantages)
    return [(a - mean_of_advantages) * (lp - mean_of_logprobs) for a, lp in zip(advantages, logprobs, strict=True)]


def stopped(a: float, ratio: float, low: float, high: float) -> bool:
    return (a > 0 and ratio > 1 + high) or (a < 0 and ratio < 1 - low)


@pytest.mark.parametrize("scale", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("ratio", [0.0, 0.02, 1.0])
def test_clip_cov_leaves_out_so_many_of_those_between_the_bounds(ratio: float, scale: float) -> None:
    tokens = tokens_with(3, scale)
    chain = objective_of("clip_cov", clip_cov_ratio=ratio, clip_cov_lb=0.3, clip_cov_ub=1.5).correction
    keep = corrected(chain, tokens).keep
    assert keep is not None
    drifts = (tokens.logprobs - tokens.old_logprobs).tolist()
    advantages = tokens.advantages.tolist()
    candidates = {
        place
        for place, value in enumerate(covariance_of(tokens))
        if 0.3 < value < 1.5 and not stopped(advantages[place], math.exp(drifts[place]), 0.2, 0.2)
    }
    left_out = set((~keep).nonzero()[:, 0].tolist())
    assert candidates
    assert left_out <= candidates
    assert len(left_out) == min(len(candidates), max(1, int(ratio * sum(LENGTHS))))


def test_clip_cov_chooses_by_chance_that_follows_from_the_token() -> None:
    chain = objective_of("clip_cov", clip_cov_ratio=0.03, clip_cov_lb=0.1).correction
    tokens = tokens_with(4, 0.1)
    keep = corrected(chain, tokens).keep
    order = torch.tensor(np.random.default_rng(0).permutation(sum(LENGTHS)))
    turned = corrected(chain, tokens, order).keep
    assert keep is not None
    assert turned is not None
    assert turned.equal(keep[order])
    covariance = covariance_of(tokens)
    between = sorted((value, place) for place, value in enumerate(covariance) if 0.1 < value < 5)
    chosen = {place for _, place in between} & set((~keep).nonzero()[:, 0].tolist())
    for extreme in (between[: len(chosen)], between[-len(chosen) :]):
        assert chosen != {place for _, place in extreme}, "neither the smallest nor the largest"


def test_what_clip_cov_leaves_out_has_no_loss_and_counts_in_the_mean() -> None:
    tokens = tokens_with(5, 0.1)
    objective = objective_of("clip_cov", clip_cov_ratio=0.05, clip_cov_lb=0.1)
    keep = corrected(objective.correction, tokens).keep
    assert keep is not None
    assert not keep.all()
    masks = [np.ones(length, np.uint8) for length in LENGTHS]
    weights = objective.aggregation.weights(masks).map(lambda each: torch.tensor(each)[tokens.sequence])
    loss, _ = objective.terms(dataclasses.replace(tokens, keep=keep), weights)
    (gradient,) = torch.autograd.grad(loss, tokens.logprobs)
    drifts = (tokens.logprobs - tokens.old_logprobs).tolist()
    total = 0.0
    for place, kept in enumerate(keep.tolist()):
        a = float(tokens.advantages[place])
        r = math.exp(drifts[place])
        value = max(-a * r, -a * min(max(r, 0.8), 1.2)) if kept else 0.0
        slope = -a * r if kept and not stopped(a, r, 0.2, 0.2) else 0.0
        total += value / sum(LENGTHS)
        assert gradient[place].item() == pytest.approx(slope / sum(LENGTHS), rel=1e-7, abs=1e-12)
    assert loss.item() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("ratio", [0.0002, 0.05, 1.0])
def test_kl_cov_holds_the_tokens_of_the_largest_covariance(ratio: float) -> None:
    tokens = tokens_with(6, 0.3)
    objective = objective_of("kl_cov", kl_cov_ratio=ratio, ppo_kl_coef=0.7)
    marked = corrected(objective.correction, tokens).marked
    covariance = covariance_of(tokens)
    largest = sorted(range(len(covariance)), key=lambda place: -covariance[place])[
        : max(1, int(ratio * len(covariance)))
    ]
    expected = {place for place in largest if covariance[place] > 0}
    assert marked is not None
    assert set(marked.nonzero()[:, 0].tolist()) == expected
    made = objective.policy_loss.per_token(dataclasses.replace(tokens, marked=marked))
    (gradient,) = torch.autograd.grad(made.loss.sum(), tokens.logprobs)
    drifts = (tokens.logprobs - tokens.old_logprobs).tolist()
    for place in range(len(covariance)):
        a = float(tokens.advantages[place])
        x = drifts[place]
        held = place in expected
        assert made.loss[place].item() == pytest.approx(-a * math.exp(x) + 0.7 * abs(x) * held, rel=1e-9)
        slope = -a * math.exp(x) + 0.7 * math.copysign(1.0, x) * held
        assert gradient[place].item() == pytest.approx(slope, rel=1e-7)


def test_where_nothing_varies_nothing_is_held() -> None:
    """The largest of equal covariances would be any token."""
    tokens = tokens_with(7, 0.3)
    level = dataclasses.replace(tokens, advantages=torch.ones_like(tokens.advantages))
    marked = corrected(objective_of("kl_cov").correction, level).marked
    assert marked is not None
    assert not marked.any()


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_an_experts_rows_are_neither_left_out_nor_held(name: str) -> None:
    arguments = {"clip_cov_ratio": 1.0, "clip_cov_lb": -9.0} if name == "clip_cov" else {"kl_cov_ratio": 1.0}
    tokens = tokens_with(8, 0.1, (False, True, False, True, False))
    made = corrected(objective_of(name, **arguments).correction, tokens)
    found = made.marked if name == "kl_cov" else ~made.keep if made.keep is not None else None
    assert found is not None
    assert found.any()
    assert not found[tokens.expert].any()
