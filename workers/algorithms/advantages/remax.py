"""`remax`: the reward relative to that of the greedy answer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats
from rftd.workers.algorithms.advantages.rloo import leave_one_out


class RemaxAdvantage(OneGroup):
    """The reward less that of the group's greedy rollout, which has no advantage itself.

    If there is none, because it failed, the others' mean is the baseline, as in `rloo`.
    """

    greedy_rollouts: ClassVar[int] = 1

    def of_group(self, group: ClosedGroup) -> Floats:
        """In float64, rounded once at the end  # [G]"""
        rewards = group.exact_rewards()
        greedy = group.greedy
        if greedy is None or not greedy.any():
            return leave_one_out(rewards).astype(np.float32)
        return np.where(greedy, 0.0, rewards - rewards[greedy].mean()).astype(np.float32)
