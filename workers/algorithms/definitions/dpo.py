"""DPO: preferences of a dataset."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

DPO: Final = AlgorithmDefinition(
    name="dpo",
    summary="Direct preference optimization: raises the likelihood of chosen responses over that of rejected ones.",
    source="Rafailov et al. 2023, arXiv 2305.18290",
    when="Pairs of a better and a worse answer are at hand, and neither a reward nor rollouts.",
    repeat_times=2,  # two responses to each prompt
    policy_loss="dpo",
    policy_loss_args={"beta": 0.1, "label_smoothing": 0.0},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    rows="dpo",
    needs=Needs(rollouts=False, reference=True),
)
