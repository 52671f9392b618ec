"""Distillation by the Jensen-Shannon divergence between pupil and teacher."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

JSD: Final = AlgorithmDefinition(
    name="jsd",
    summary="Advantage = the policy gradient of the Jensen-Shannon divergence to a teacher; PPO's clipped policy loss.",
    source="Agarwal et al. 2024, GKD, arXiv 2306.13649",
    when="As on_policy_distill, where the pupil shall neither spread over nor collapse into what the teacher likes.",
    repeat_times=8,
    advantage="jsd",
    advantage_args={"kl_coef": 1.0, "lambda_coef": 0.5},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(old_logprobs=True, teacher=True),
)
