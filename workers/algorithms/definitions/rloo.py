"""RLOO: the baseline of an answer is the mean of the others to its task."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

RLOO: Final = AlgorithmDefinition(
    name="rloo",
    summary="Advantage = reward less the mean of the group's other rewards, not divided by a std; PPO's clipped loss.",
    source="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740",
    when="Rewards whose size means something: grpo's division by the std would hide it.",
    repeat_times=2,
    advantage="rloo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
