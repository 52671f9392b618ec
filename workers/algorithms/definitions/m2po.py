"""M2PO: GRPO whose trust region is the second moment of a batch's log-ratios."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

M2PO: Final = AlgorithmDefinition(
    name="m2po",
    summary="GRPO's advantages; the unclipped ratio, without the tokens that make the batch's second moment large.",
    source="Zheng et al. 2025, M2PO, arXiv 2510.01161",
    when="Rollouts that are many versions old: few tokens are left out, and the others learn in full.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="m2po",
    policy_loss_args={"m2_threshold": 0.04, "log_ratio_clip": 20.0},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
