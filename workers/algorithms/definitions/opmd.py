"""OPMD: the policy gradient against a group's baseline, without a ratio."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

OPMD: Final = AlgorithmDefinition(
    name="opmd",
    summary="Advantage = reward less the group's mean; the policy gradient, damped by 1 + tau, for any tokens.",
    source="Pan et al. 2025, Trinity-RFT, arXiv 2505.17826",
    when="Off-policy data whose old log-probabilities are unknown or not to be trusted.",
    repeat_times=2,
    advantage="opmd",
    advantage_args={"opmd_baseline": "mean", "tau": 1.0},
    policy_loss="opmd",
    policy_loss_args={"tau": 1.0},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, reference=True),
)
