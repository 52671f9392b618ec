"""REC: the family of group-relative REINFORCE."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

REC: Final = AlgorithmDefinition(
    name="rec",
    summary="Advantage = reward less the group's mean; REINFORCE with any clip, weight and regularizer.",
    source="Yao et al. 2025, arXiv 2509.24203",
    when="To find out what of a loss helps: clip_mode, weight and regularizer are switched one by one.",
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
