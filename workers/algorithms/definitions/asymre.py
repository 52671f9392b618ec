"""AsymRE: REINFORCE with a baseline a little below the mean."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.definition import AlgorithmDefinition, Needs

ASYMRE: Final = AlgorithmDefinition(
    name="asymre",
    summary="Advantage = reward less (the group's mean - 0.1): good answers count more than bad ones; no ratio, no KL.",
    source="Arnal et al. 2025, Asymmetric REINFORCE, arXiv 2506.20520",
    when="Very old data: with a baseline above the mean off-policy REINFORCE collapses, below it does not.",
    repeat_times=2,
    advantage="asymre",
    advantage_args={"baseline_shift": -0.1},
    policy_loss="opmd",
    needs=Needs(groups=True),
)
