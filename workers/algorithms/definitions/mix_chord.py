"""CHORD: mix with a weight that changes with the step, and with token weights p (1 - p)."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

MIX_CHORD: Final = AlgorithmDefinition(
    name="mix_chord",
    summary="As mix; mu follows a schedule, and an expert's token counts by p (1 - p).",
    source="Zhang et al. 2025, CHORD, arXiv 2508.11408",
    when="As mix, where the expert writes unlike the policy: it is followed first, and left later.",
    repeat_times=8,
    advantage="grpo",
    policy_loss="mix_chord",
    policy_loss_args={
        "mu_warmup_steps": 0,
        "mu_decay_steps": 0,
        "mu_peak": 0.1,
        "mu_valley": 0.1,
        "enable_phi_function": True,
    },
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="mix",
    entropy_loss_args={"entropy_coef": 0.0},
    sample_strategy="mix",
    sample_strategy_args={"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"},
    needs=Needs(groups=True, old_logprobs=True, reference=True, expert_data=True),
)
