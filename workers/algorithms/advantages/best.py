"""`best`: the best of a group, and none of the others."""

from __future__ import annotations

import numpy as np

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


class BestAdvantage(OneGroup):
    """1 for the experiences with the group's highest reward, 0 for others; 0 for all if no reward is the better one.

    A group of one has 1: there is nothing that it could be worse than. For losses that are weighted by it: `raft`.
    """

    def of_group(self, group: ClosedGroup) -> Floats:
        """1 or 0  # [G]"""
        rewards = group.rewards
        if len(rewards) < 2:
            return np.ones(len(rewards), np.float32)
        best = rewards == rewards.max()
        return np.where(best & ~best.all(), 1.0, 0.0).astype(np.float32)
