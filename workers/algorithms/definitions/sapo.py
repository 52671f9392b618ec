"""SAPO: GRPO with a soft gate in the place of the clip."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

SAPO: Final = AlgorithmDefinition(
    name="sapo",
    summary="GRPO's advantages; a gate that fades away from a ratio of 1, more so where A < 0; responses count alike.",
    source="Gao et al. 2025, SAPO, arXiv 2511.20347",
    when="Where a hard clip throws away too much: off-policy data, mixtures of experts.",
    repeat_times=2,
    advantage="grpo",
    policy_loss="sapo",
    policy_loss_args={"tau_pos": 1.0, "tau_neg": 1.05},
    loss_agg_mode="seq-mean-token-mean",
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
