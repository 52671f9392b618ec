"""CISPO: GRPO with clipped weights in the place of clipped tokens."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

CISPO: Final = AlgorithmDefinition(
    name="cispo",
    summary="GRPO's advantages; the policy gradient of every token, weighted by a clipped ratio.",
    source="MiniMax 2025, MiniMax-M1, arXiv 2506.13585",
    when="Rare but decisive tokens, which PPO's clip would leave without a gradient.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="cispo",
    policy_loss_args={"clip_range_low": 1.0, "clip_range_high": 0.28},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
