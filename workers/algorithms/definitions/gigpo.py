"""GiGPO: a run relative to its group, and a step relative to the others from its state."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

GIGPO: Final = AlgorithmDefinition(
    name="gigpo",
    summary="The advantage of a run in its group, plus that of a step among those there that began in the same state.",
    source="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978",
    when="Environments of several steps whose states recur: games, web pages, tools.",
    repeat_times=8,
    advantage="gigpo",
    advantage_args={"omega": 1.0, "gamma": 1.0},
    policy_loss="ppo",
    policy_loss_args={"clip_range_low": 0.2, "clip_range_high": 0.2},
    kl_loss="k2",
    kl_loss_args={"kl_coef": 0.001},
    entropy_loss="default",
    entropy_loss_args={"entropy_coef": 0.0},
    needs=Needs(groups=True, old_logprobs=True, reference=True),
)
