"""On-policy distillation: a teacher judges each token of the pupil's own answers."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

ON_POLICY_DISTILL: Final = AlgorithmDefinition(
    name="on_policy_distill",
    summary="Advantage = how much more likely the teacher finds each token; PPO's clipped policy loss; no reward.",
    source="Agarwal et al. 2024, GKD, arXiv 2306.13649",
    when="A larger model with the same tokenizer knows the task: it judges every token, not only the answer.",
    repeat_times=8,
    advantage="on_policy_distill",
    advantage_args={"kl_coef": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range": 0.2},
    needs=Needs(old_logprobs=True, teacher=True),
)
