"""`reinforce`: the reward itself."""

from __future__ import annotations

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


class ReinforceAdvantage(OneGroup):
    """The reward, without a baseline."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """The rewards  # [G]"""
        return group.rewards.astype("float32")
