"""What every registered policy loss and KL loss promises, from tensors alone: being registered is being tested."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from synthetic.models.loss_tokens import EXPERTS, LENGTHS, make_loss_tokens, responses_of

from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.losses import diagnostics
from rftd.workers.learning.losses.aggregation import AGGREGATIONS, TokenWeights
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossTokens
from rftd.workers.learning.losses.registry import POLICY_LOSSES, tells_labels

# What is learnt from pairs has a contract of its own: tests/contract/test_preference_losses.py.
LOSSES = [name for name in POLICY_LOSSES.names() if POLICY_LOSSES.builtin(name) and not tells_labels(name)]
LIKELIHOODS = {"sft", "sft_is", "sft_phi"}
WITHOUT_A_PULL: dict[str, dict[str, Any]] = {"dppo": {"kl_tau": 0.0}, "probability_clip": {"kl_tau": 0.0}}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_kl = pytest.mark.parametrize("name", [name for name in KL_LOSSES.names() if KL_LOSSES.builtin(name)])


def objective_of(name: str, *, mode: str = "token-mean", kl: str = "none", entropy: str = "none") -> Objective:
    spec = AlgorithmSpec(
        kind="grpo",
        policy_loss=name,
        kl_loss=kl,
        kl_loss_args={"kl_coef": 0.5},
        entropy_loss=entropy,
        entropy_loss_args={"entropy_coef": 0.25},
        loss_agg_mode=mode,
    )
    # A mask of the whole batch is made before its step, by an engine: here each token is kept.
    return dataclasses.replace(Objective.of(spec), correction=Chain())


def weights_of(objective: Objective, tokens: LossTokens) -> TokenWeights[torch.Tensor]:
    masks = [np.ones(length, np.uint8) for length in LENGTHS]
    experts = [bool(tokens.expert[tokens.sequence == number][0]) for number in range(len(LENGTHS))]
    made = objective.aggregation.weights(masks, experts)
    return made.map(lambda each: torch.tensor(each, dtype=tokens.logprobs.dtype)[tokens.sequence])


def summed(
    objective: Objective, tokens: LossTokens, parts: list[list[int]]
) -> tuple[torch.Tensor, dict[str, float], torch.Tensor]:
    """Loss, figures and gradient of a batch that is computed in these micro-batches."""
    weights = weights_of(objective, tokens)
    total, figures = torch.zeros((), dtype=tokens.logprobs.dtype), dict[str, torch.Tensor]()
    for part in parts:
        taken, places = responses_of(tokens, part)
        loss, metrics = objective.terms(taken, weights.map(lambda each, places=places: each[places]))  # type: ignore[misc]
        total = total + loss
        for key, value in metrics.items():
            figures[key] = diagnostics.joined(key, figures[key], value) if key in figures else value
    (gradient,) = torch.autograd.grad(total, tokens.logprobs)
    return total.detach(), {key: float(value) for key, value in figures.items()}, gradient


@every_loss
@pytest.mark.parametrize("experts", [(), EXPERTS], ids=["rollouts", "mixed"])
def test_the_terms_at_tokens_add_up_to_the_loss(name: str, experts: tuple[bool, ...]) -> None:
    objective = objective_of(name, kl="k3", entropy="mix" if experts else "default")
    tokens = make_loss_tokens(experts=experts)
    weights = weights_of(objective, tokens)
    loss, _ = objective.terms(tokens, weights, kl_coef=0.125)
    columns = objective.token_terms(tokens, weights, kl_coef=0.125)
    terms = [columns[column] for column in ("policy_term", "entropy_term", "kl_term")]
    assert float(sum(term.sum() for term in terms)) == pytest.approx(float(loss.detach()), rel=1e-9)
    assert not any(column.requires_grad for column in columns.values())
    assert columns["ratio"].isnan().equal(tokens.expert)
    drawn = ~tokens.expert
    ratios = (tokens.logprobs.detach() - tokens.old_logprobs).exp()
    assert torch.allclose(columns["ratio"][drawn], ratios[drawn])


@every_loss
def test_zero_advantages_have_no_policy_gradient(name: str) -> None:
    if name in LIKELIHOODS:
        pytest.skip("takes no advantage")
    tokens = dataclasses.replace(make_loss_tokens(), advantages=torch.zeros(sum(LENGTHS), dtype=torch.float64))
    made = POLICY_LOSSES.open(name, WITHOUT_A_PULL.get(name, {})).per_token(tokens)
    (gradient,) = torch.autograd.grad(made.loss.sum(), tokens.logprobs)
    assert not gradient.any()


@every_loss
def test_a_better_token_becomes_likelier(name: str) -> None:
    """The loss on policy falls with the log-probability of a token of positive advantage."""
    tokens = make_loss_tokens(scale=0.0)
    tokens = dataclasses.replace(tokens, advantages=torch.ones_like(tokens.advantages))
    made = POLICY_LOSSES.open(name).per_token(tokens)
    (gradient,) = torch.autograd.grad(made.loss.sum(), tokens.logprobs)
    assert bool((gradient < 0).all())


@every_loss
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("experts", [(), EXPERTS], ids=["rollouts", "mixed"])
def test_neither_order_nor_micro_batches_matter(name: str, mode: str, experts: tuple[bool, ...]) -> None:
    tokens = make_loss_tokens(experts=experts)
    objective = objective_of(name, mode=mode, kl="k3", entropy="mix")
    whole, figures, gradient = summed(objective, tokens, [[0, 1, 2, 3, 4]])
    for parts in ([[3, 0, 4, 2, 1]], [[0], [1], [2], [3], [4]], [[2, 4], [3], [1, 0]]):
        other, others, gradients = summed(objective, tokens, parts)
        torch.testing.assert_close(other, whole)
        torch.testing.assert_close(gradients, gradient)
        assert others == pytest.approx(figures)


@every_loss
@pytest.mark.parametrize("log_ratio", [-60.0, -20.0, 0.0, 20.0, 60.0])
def test_extreme_ratios_are_finite_in_float32(name: str, log_ratio: float) -> None:
    tokens = make_loss_tokens(experts=EXPERTS)
    logprobs = torch.full_like(tokens.logprobs, -70.0 if log_ratio < 0 else -1e-3, dtype=torch.float32)
    old = (logprobs - log_ratio).masked_fill(tokens.expert, 0.0)
    tokens = dataclasses.replace(
        tokens, logprobs=logprobs.requires_grad_(), old_logprobs=old, advantages=tokens.advantages.float()
    )
    made = POLICY_LOSSES.open(name).per_token(tokens)
    (gradient,) = torch.autograd.grad(made.loss.sum(), tokens.logprobs)
    assert bool(made.loss.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in (made.metrics | made.of_responses).values())


@every_loss
def test_what_is_reported_is_of_each_token_and_without_gradient(name: str) -> None:
    tokens = make_loss_tokens(experts=EXPERTS)
    made = POLICY_LOSSES.open(name).per_token(tokens)
    assert made.loss.shape == tokens.logprobs.shape
    for key, value in (made.metrics | made.of_responses).items():
        assert value.shape == tokens.logprobs.shape, key
        assert not value.requires_grad, key
    for key, value in made.of_responses.items():
        torch.testing.assert_close(tokens.sequence_mean(value), value, msg=key)


@every_loss
def test_what_is_not_needed_is_not_looked_at(name: str) -> None:
    made = POLICY_LOSSES.open(name)
    if getattr(made, "needs_old_logprobs", False):
        return
    tokens = make_loss_tokens()
    other = dataclasses.replace(tokens, old_logprobs=torch.full_like(tokens.old_logprobs, float("nan")))
    assert made.per_token(tokens).loss.equal(made.per_token(other).loss)


@every_kl
def test_a_kl_of_equal_policies_is_zero_and_does_not_pull(name: str) -> None:
    tokens = make_loss_tokens()
    ref = tokens.logprobs.detach().clone()
    value = KL_LOSSES.open(name).estimate(tokens.logprobs, ref, tokens.old_logprobs)
    assert not value.any()
    if value.requires_grad and name != "k1":  # whose gradient is 1 wherever the policies are
        assert not torch.autograd.grad(value.sum(), tokens.logprobs)[0].any()


@every_kl
@pytest.mark.parametrize("difference", [-20.0, 0.0, 20.0])
def test_a_kl_is_finite_in_float32(name: str, difference: float) -> None:
    logprobs = torch.full((3,), -21.0, requires_grad=True)
    value = KL_LOSSES.open(name).estimate(logprobs, logprobs.detach() - difference, logprobs.detach() - 60.0)
    assert bool(value.isfinite().all())
    if value.requires_grad:
        assert bool(torch.autograd.grad(value.sum(), logprobs)[0].isfinite().all())
