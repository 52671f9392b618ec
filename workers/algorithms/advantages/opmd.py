"""`opmd`: the reward less a baseline of its group, not divided by anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats

BASELINES = ("mean", "logavgexp")


@dataclass(frozen=True, kw_only=True)
class OpmdAdvantage(OneGroup):
    """reward - baseline: the mean, or tau log mean exp(reward / tau). A group of one has its reward as advantage."""

    opmd_baseline: str = "mean"
    tau: float = 1.0

    def __post_init__(self) -> None:
        if self.opmd_baseline not in BASELINES:
            raise ConfigError(
                f"opmd_baseline is {self.opmd_baseline!r}",
                field="advantage_fn_args.opmd_baseline",
                fix=f"use {' or '.join(BASELINES)}",
            )
        if not self.tau > 0:
            raise ConfigError(f"tau is {self.tau}", field="advantage_fn_args.tau", fix="use one above 0")

    def of_group(self, group: ClosedGroup) -> Floats:
        """In float64, rounded once at the end  # [G]"""
        rewards = group.exact_rewards()
        if len(rewards) < 2:
            return rewards.astype(np.float32)
        if self.opmd_baseline == "mean":
            baseline = float(rewards.mean())
        else:
            highest = float(rewards.max())  # taken out, so that nothing overflows
            baseline = highest + self.tau * float(np.log(np.exp((rewards - highest) / self.tau).mean()))
        return (rewards - baseline).astype(np.float32)
