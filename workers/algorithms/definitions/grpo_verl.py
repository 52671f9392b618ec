"""GRPO as the guides' older name has it."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

GRPO_VERL: Final = AlgorithmDefinition(
    name="grpo_verl",
    summary="grpo under its older name: the advantages are the same.",
    source="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    when="Files that were written for it; else take grpo.",
    repeat_times=8,
    advantage="grpo_verl",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
