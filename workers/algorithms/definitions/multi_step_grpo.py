"""Multi-step GRPO: the advantage of a run's last step, for each of its steps."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

MULTI_STEP_GRPO: Final = AlgorithmDefinition(
    name="multi_step_grpo",
    summary="The reward of a run's last step relative to the group's, given to each of its steps; PPO's clipped loss.",
    source="Pan et al. 2025, Trinity-RFT, arXiv 2505.17826",
    when="Workflows of several steps with one reward at the end.",
    repeat_times=8,
    advantage="step_wise_grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
