"""Losses that choose among the tokens of a step, over mini-batches, against float64 loops of their papers' formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from synthetic.models.plain_loops import Response, in_order, joint_loop, near_policy, relative, weights_of

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec, UpdatesSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch

Make = Callable[..., Any]
Open = Callable[..., TorchTrainerEngine]
Losses = Callable[[Sequence[Response]], Sequence[torch.Tensor]]
SGD = Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0)


def joined(responses: Sequence[Response]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    """Log-probabilities now and of the rollouts, advantages, and the lengths of the responses."""
    now = torch.cat([each.now for each in responses])
    rollout = torch.cat([each.rollout for each in responses])
    advantages = torch.cat([torch.full_like(each.now, each.advantage) for each in responses]).detach()
    return now, rollout, advantages, [len(each.now) for each in responses]


def trusted(gap: torch.Tensor, advantages: torch.Tensor, budget: float) -> torch.Tensor:
    """M2PO: of the tokens that move away, the largest go, one after the other, until the mean square is in budget."""
    away = [n for n, (a, d) in enumerate(zip(advantages.tolist(), gap.tolist(), strict=True)) if a * d > 0]
    away.sort(key=lambda n: abs(float(gap[n])))
    while away and sum(float(gap[n]) ** 2 for n in away) / len(away) > budget:
        away.pop()
    kept = torch.tensor([not a * d > 0 for a, d in zip(advantages.tolist(), gap.tolist(), strict=True)])
    kept[away] = True
    return kept


def m2po(responses: Sequence[Response]) -> Sequence[torch.Tensor]:
    now, rollout, advantages, lengths = joined(responses)
    kept = trusted((now - rollout).detach(), advantages, 0.01)
    return (-advantages * (now - rollout).exp() * kept).split(lengths)


def m2po_decoupled(responses: Sequence[Response]) -> Sequence[torch.Tensor]:
    """M2PO as a correction of decoupled PPO: by the weights before the batch, within the mini-batch."""
    now, rollout, advantages, lengths = joined(responses)
    start = torch.cat([each.start for each in responses])
    kept = trusted(start - rollout, advantages, 0.01)
    ratio = (now - start).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * 3.0), loss)
    return (loss * kept).split(lengths)


def covariances(now: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    logprobs = now.detach()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def clip_cov(responses: Sequence[Response]) -> Sequence[torch.Tensor]:
    """Clip-Cov with a share of 1: each token between the bounds is left out, and nothing is drawn."""
    now, rollout, advantages, lengths = joined(responses)
    ratio = (now - rollout).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(0.8, 1.2)
    covariance = covariances(now, advantages)
    left_out = (covariance > 0.05) & (covariance < 0.5) & ~(clipped > plain)
    return (torch.maximum(plain, clipped) * ~left_out).split(lengths)


def kl_cov(responses: Sequence[Response]) -> Sequence[torch.Tensor]:
    now, rollout, advantages, lengths = joined(responses)
    held = covariances(now, advantages).topk(max(1, int(0.2 * len(now)))).indices
    gap = now - rollout
    pull = torch.zeros_like(gap).index_add(0, held, gap[held].abs())
    return (-advantages * gap.exp() + 0.7 * pull).split(lengths)


RECOMPUTED = CorrectionSpec(old_logprobs="recomputed", parts=(CorrectionPart(kind="m2po", args={"threshold": 0.01}),))
LOSSES: dict[str, tuple[dict[str, Any], Losses, str]] = {
    "m2po": ({"policy_loss": "m2po", "policy_loss_args": {"m2_threshold": 0.01}}, m2po, "correction/masked"),
    "m2po decoupled": ({"correction": RECOMPUTED}, m2po_decoupled, "correction/masked"),
    "clip_cov": (
        {
            "policy_loss": "clip_cov",
            "policy_loss_args": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.05, "clip_cov_ub": 0.5},
        },
        clip_cov,
        "correction/masked",
    ),
    "kl_cov": (
        {"policy_loss": "kl_cov", "policy_loss_args": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}},
        kl_cov,
        "actor/held",
    ),
}


def stage_of(make_stage: Make, updates: UpdatesSpec, budget_tokens: int, **algorithm: Any) -> StageSpec:
    stage: StageSpec = make_stage(budget_tokens=budget_tokens, optimizer=SGD)
    return msgspec.structs.replace(
        stage,
        algorithm=msgspec.structs.replace(stage.algorithm, **algorithm),
        trainer=msgspec.structs.replace(stage.trainer, updates=updates),
    )


def several_groups(tiny_model: Path, make_batch: Make) -> TrainBatch:
    """Mini-batches whose tokens vary enough to be chosen among."""
    batch: TrainBatch = near_policy(tiny_model, make_batch(groups=4, members=6))
    return batch


@pytest.mark.parametrize("budget_tokens", [24, 8192])
@pytest.mark.parametrize("name", LOSSES)
def test_tokens_are_chosen_for_each_step_among_its_own(
    tiny_model: Path, open_engine: Open, make_stage: Make, make_batch: Make, name: str, budget_tokens: int
) -> None:
    """Two epochs of three mini-batches: by the weights of each step, whatever its micro-batches."""
    algorithm, losses_of, figure = LOSSES[name]
    batch = several_groups(tiny_model, make_batch)
    engine = open_engine(stage_of(make_stage, UpdatesSpec(epochs=2, mini_batch_items=8), budget_tokens, **algorithm))
    before = weights_of(engine)
    metrics = engine.train(batch).metrics
    expected = joint_loop(tiny_model, batch, in_order(batch, 8, 2), losses_of, "token-mean", SGD)
    # Six steps in float32 against float64; a token chosen otherwise would be off by 1e-3 and more.
    assert relative(weights_of(engine), expected, before) < 2e-5
    assert metrics["actor/optimizer_steps"] == 6
    assert 0 < metrics[figure] < 0.9
    if budget_tokens == 24:
        assert metrics["actor/micro_batches"] > 6
