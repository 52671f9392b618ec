"""Losses and divergences of padded tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses import from_tensors

MASK = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [1, 1, 1, 0]])


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    old = -rng.uniform(0.1, 3, MASK.shape)
    return {
        "logprobs": torch.tensor(old + rng.normal(0, 0.3, MASK.shape), requires_grad=True),
        "old_logprobs": torch.tensor(old),
        "mask": MASK,
    }


def test_a_loss_is_that_of_its_formula_at_trained_tokens_alone() -> None:
    tensors = batch()
    advantages = torch.tensor([1.0, -0.5, 2.0])
    loss, reported = from_tensors.policy_loss("importance_sampling", advantages=advantages, **tensors)
    ratio = (tensors["logprobs"] - tensors["old_logprobs"]).exp()
    expected = (-advantages[:, None] * ratio * MASK).sum() / MASK.sum()
    assert loss.item() == pytest.approx(expected.item())
    assert set(reported) == {"ppo_kl"}
    (gradient,) = torch.autograd.grad(loss, tensors["logprobs"])
    assert not gradient[MASK == 0].any()
    assert bool((gradient[MASK == 1] != 0).all())


def test_padding_is_not_looked_at() -> None:
    tensors, advantages = batch(), torch.tensor([1.0, -0.5, 2.0])
    loss, _ = from_tensors.policy_loss("ppo", advantages=advantages, **tensors)
    padded = {key: torch.nn.functional.pad(value.detach(), (0, 3), value=0.0) for key, value in tensors.items()}
    padded["logprobs"] = padded["logprobs"].masked_fill(padded["mask"] == 0, float("nan"))
    again, _ = from_tensors.policy_loss("ppo", advantages=advantages, **padded)
    assert again.item() == loss.item()


def test_aggregation_is_the_losss_own_unless_given() -> None:
    tensors, advantages = batch(), torch.ones(3)
    own, _ = from_tensors.policy_loss("gspo", advantages=advantages, **tensors)
    sequences, _ = from_tensors.policy_loss(
        "gspo", advantages=advantages, loss_agg_mode="seq-mean-token-mean", **tensors
    )
    mean, _ = from_tensors.policy_loss("gspo", advantages=advantages, loss_agg_mode="token-mean", **tensors)
    assert own.item() == sequences.item() != mean.item()


def test_rows_of_an_expert_are_mixed_in() -> None:
    tensors = batch()
    loss, reported = from_tensors.policy_loss(
        "mix", advantages=torch.tensor([1.0, 0.0, 2.0]), expert=torch.tensor([0, 1, 0]), mu=1.0, **tensors
    )
    assert loss.item() == pytest.approx(-tensors["logprobs"][1][MASK[1] == 1].mean().item())
    assert reported["expert/sft_loss"] == pytest.approx(loss.item())


def test_a_divergence() -> None:
    tensors = batch()
    difference = tensors["logprobs"] - tensors["old_logprobs"]
    found = from_tensors.kl("k2", logprobs=tensors["logprobs"], ref_logprobs=tensors["old_logprobs"], mask=MASK)
    assert found.item() == pytest.approx((0.5 * difference.square() * MASK).sum().item() / int(MASK.sum()))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"mask": MASK[:2]}, "mask"),
        ({"old_logprobs": torch.zeros(3)}, "old_logprobs"),
        ({"old_logprobs": None}, "old_logprobs"),
        ({"advantages": torch.zeros(2)}, "advantages"),
    ],
)
def test_shapes_that_differ_are_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_tensors.policy_loss("ppo", **{**batch(), **changed})
    assert raised.value.field == field


def test_a_corrected_divergence_needs_to_know_who_drew_the_tokens() -> None:
    with pytest.raises(ConfigError, match="old_logprobs"):
        from_tensors.kl(
            "corrected_k3", logprobs=torch.zeros(1, 1), ref_logprobs=torch.zeros(1, 1), mask=torch.ones(1, 1)
        )
