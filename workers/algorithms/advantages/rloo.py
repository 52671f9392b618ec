"""`rloo`: the reward relative to the other rollouts of its group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


class RlooAdvantage(OneGroup):
    """The reward less the mean of the others: n / (n - 1) (reward - mean). A group of one has its reward."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """In float64, rounded once at the end  # [G]"""
        return leave_one_out(group.exact_rewards()).astype(np.float32)


def leave_one_out(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each reward less the mean of the others  # [G] -> [G]"""
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1)) if count > 1 else rewards
