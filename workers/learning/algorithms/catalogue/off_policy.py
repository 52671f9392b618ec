"""Algorithms for rollouts that older weights sampled."""

from __future__ import annotations

from typing import Final

from rftd.workers.learning.algorithms.definition import AlgorithmDefinition, Needs

# No old log-probabilities among the needs: that is what makes this loss fit for data of unknown origin.
OPMD: Final = AlgorithmDefinition(
    name="opmd",
    summary="Advantage = reward minus the group's mean; the policy gradient, divided by 1 + tau, for any tokens.",
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

ASYMRE: Final = AlgorithmDefinition(
    name="asymre",
    summary="Reward minus (the group's mean - 0.1): good answers count more than bad ones; no ratio, no KL.",
    source="Arnal et al. 2025, Asymmetric REINFORCE, arXiv 2506.20520",
    when="Very old data: with a baseline above the mean, off-policy REINFORCE collapses; below it, it does not.",
    repeat_times=2,
    advantage="asymre",
    advantage_args={"baseline_shift": -0.1},
    policy_loss="opmd",
    needs=Needs(groups=True),
)

TOPR: Final = AlgorithmDefinition(
    name="topr",
    summary="Advantage = reward; good answers as they are, bad ones with a truncated ratio.",
    source="Le Roux et al. 2025, TOPR, arXiv 2503.14286",
    when="Rewards below 0 for bad answers, and data that may be old: the loss stays bounded without a KL.",
    repeat_times=2,
    advantage="reinforce",
    policy_loss="topr",
    policy_loss_args={"advantage_threshold": 0.0},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(old_logprobs=True, reference=True),
)

SPPO: Final = AlgorithmDefinition(
    name="sppo",
    summary="Advantage = reward minus the group's mean; -A log r of the tokens whose ratio is near 1.",
    source="Vaswani et al. 2021, arXiv 2108.05828, by token",
    when="Like grpo, with a clip that also stops tokens that move back towards a ratio of 1.",
    repeat_times=2,
    advantage="opmd",
    policy_loss="sppo",
    policy_loss_args={"epsilon": 0.3},
    needs=Needs(groups=True, old_logprobs=True),
)

REC: Final = AlgorithmDefinition(
    name="rec",
    summary="Advantage = reward minus the group's mean; REINFORCE with any clip, weight and regularizer.",
    source="Yao et al. 2025, arXiv 2509.24203",
    when="To find out which part of a loss helps: clip_mode, weight and regularizer can be switched one by one.",
    repeat_times=2,
    advantage="rec",
    advantage_args={"std_normalize": False},
    policy_loss="rec",
    policy_loss_args={"clip_mode": "none", "weight": "none", "regularizer": "none"},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)

RAFT: Final = AlgorithmDefinition(
    name="raft",
    summary="Raises the log-likelihood of a group's best answers; groups with equal rewards have no effect.",
    source="Dong et al. 2023, RAFT, arXiv 2304.06767",
    when="A simple and stable start; it learns from successes alone.",
    repeat_times=2,
    own_tries=True,
    advantage="best",
    policy_loss="sft",
    policy_loss_args={"weighted": True},
    needs=Needs(groups=True),
)

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
