"""`asymre`: the reward less the mean of its group, shifted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


@dataclass(frozen=True, kw_only=True)
class AsymreAdvantage(OneGroup):
    """reward - (mean + baseline_shift): with a shift below 0 good answers count more than bad ones.

    A group of one has its reward as advantage.
    """

    baseline_shift: float = -0.1

    def of_group(self, group: ClosedGroup) -> Floats:
        """In float64, rounded once at the end  # [G]"""
        rewards = group.exact_rewards()
        baseline = rewards.mean() + self.baseline_shift if len(rewards) > 1 else 0.0
        return (rewards - baseline).astype(np.float32)
