"""Losses, KL functions and aggregation against verl's numbers: golden/losses/verl.json says which release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rftd.workers.learning.losses.aggregation import AGGREGATIONS, Aggregation
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.policy_loss import LossTokens
from rftd.workers.learning.losses.registry import POLICY_LOSSES

GOLDEN = json.loads((Path(__file__).parents[4] / "golden" / "losses" / "verl.json").read_text())
LOSSES = [(fixture, case) for fixture in GOLDEN["fixtures"] for case in fixture["losses"]]
DIVERGENCES = [(fixture, case) for fixture in GOLDEN["fixtures"] for case in fixture["divergences"]]
AGGREGATED = [(fixture, case) for fixture in GOLDEN["fixtures"] for case in fixture["aggregations"]]


def tokens_of(fixture: dict[str, Any]) -> tuple[LossTokens, list[np.ndarray[Any, np.dtype[np.uint8]]]]:
    responses = fixture["responses"]
    masks = [np.array(each["mask"], np.uint8) for each in responses]

    def trained(key: str) -> torch.Tensor:
        return torch.tensor(
            np.concatenate([np.array(each[key])[mask != 0] for each, mask in zip(responses, masks, strict=True)])
        )

    counts = [int(mask.sum()) for mask in masks]
    logprobs = trained("logprobs").requires_grad_()
    tokens = LossTokens(
        logprobs=logprobs,
        entropies=torch.zeros_like(logprobs),
        old_logprobs=trained("old_logprobs"),
        ref_logprobs=trained("ref_logprobs"),
        advantages=torch.tensor(np.repeat([each["advantage"] for each in responses], counts)),
        expert=torch.zeros(len(logprobs), dtype=torch.bool),
        sequence=torch.tensor(np.repeat(np.arange(len(counts)), counts)),
        sequences=len(counts),
    )
    return tokens, masks


def weights_of(mode: str, tokens: LossTokens, masks: list[Any], *, norm: float | None = None) -> torch.Tensor:
    return torch.tensor(Aggregation(mode, norm).weights(masks).whole)[tokens.sequence]


def assert_equal(loss: torch.Tensor, tokens: LossTokens, case: dict[str, Any]) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    assert loss.item() == pytest.approx(case["value"], rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(tokens.logprobs.grad, case["gradient"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("fixture", "case"),
    LOSSES,
    ids=[
        f"{fixture['name']}-{case['loss']}-{case['loss_agg_mode']}-{number}"
        for number, (fixture, case) in enumerate(LOSSES)
    ],
)
def test_a_policy_loss_is_that_of_verl(fixture: dict[str, Any], case: dict[str, Any]) -> None:
    tokens, masks = tokens_of(fixture)
    made = POLICY_LOSSES.open(case["loss"], case["arguments"]).per_token(tokens)
    assert_equal((made.loss * weights_of(case["loss_agg_mode"], tokens, masks)).sum(), tokens, case)


@pytest.mark.parametrize(
    ("fixture", "case"), DIVERGENCES, ids=[f"{fixture['name']}-{case['kl']}" for fixture, case in DIVERGENCES]
)
def test_a_kl_function_is_that_of_verl(fixture: dict[str, Any], case: dict[str, Any]) -> None:
    tokens, masks = tokens_of(fixture)
    assert tokens.ref_logprobs is not None
    kl = KL_LOSSES.open(case["kl"]).estimate(tokens.logprobs, tokens.ref_logprobs, tokens.old_logprobs)
    assert_equal((kl * weights_of("token-mean", tokens, masks)).sum(), tokens, case)


@pytest.mark.parametrize(
    ("fixture", "case"),
    AGGREGATED,
    ids=[f"{fixture['name']}-{case['loss_agg_mode']}-{case['loss_scale_factor']}" for fixture, case in AGGREGATED],
)
def test_an_aggregation_is_that_of_verl(fixture: dict[str, Any], case: dict[str, Any]) -> None:
    tokens, masks = tokens_of(fixture)
    weights = weights_of(case["loss_agg_mode"], tokens, masks, norm=case["loss_scale_factor"])
    assert_equal((tokens.logprobs * weights).sum(), tokens, case)


def test_every_aggregation_is_compared_with_verl() -> None:
    assert {case["loss_agg_mode"] for _, case in AGGREGATED} == set(AGGREGATIONS)
    assert any(not any(each["mask"]) for fixture, _ in AGGREGATED for each in fixture["responses"])
