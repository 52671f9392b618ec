"""GSPO: GRPO with the ratio of whole responses."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

GSPO: Final = AlgorithmDefinition(
    name="gspo",
    summary="GRPO's advantages; PPO's clip on the ratio of whole responses; each response counts the same.",
    source="Zheng et al. 2025, GSPO, arXiv 2507.18071",
    when="Long responses, mixtures of experts, and engines whose log-probabilities differ a little from the trainer's.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="gspo",
    loss_agg_mode="seq-mean-token-mean",
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
