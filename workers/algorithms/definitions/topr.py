"""TOPR: REINFORCE whose bad answers count by a ratio of at most 1."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

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
