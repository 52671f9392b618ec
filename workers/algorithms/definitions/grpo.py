"""GRPO: rewards relative to the group, with PPO's clipped loss."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

GRPO: Final = AlgorithmDefinition(
    name="grpo",
    summary="Advantage = reward relative to its group, in standard deviations; PPO's clipped policy loss.",
    when="The first choice for tasks with a verifiable reward: no critic, few settings.",
    source="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    repeat_times=8,  # as in the guides' examples; two are the least
    advantage="grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
