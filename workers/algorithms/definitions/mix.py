"""MIX: GRPO on rollouts and SFT on an expert's rows, in one batch."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

MIX: Final = AlgorithmDefinition(
    name="mix",
    summary="(1 - mu) GRPO of rollouts + mu SFT of an expert's rows, in each batch.",
    source="Pan et al. 2025, Trinity-RFT, arXiv 2505.17826",
    when="A few good answers of an expert are at hand, and rollouts alone seldom earn a reward.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="mix",
    policy_loss_args={"mu": 0.1},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="mix",
    entropy_loss_args={"entropy_coef": 0.0},
    sample_strategy="mix",
    sample_strategy_args={"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"},
    needs=Needs(groups=True, old_logprobs=True, reference=True, expert_data=True),
)
