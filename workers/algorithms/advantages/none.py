"""`none`: for losses that use no advantage, such as sft."""

from __future__ import annotations

import numpy as np

from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


class NoAdvantage(OneGroup):
    """Zero for every experience."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """Zeros  # [G]"""
        return np.zeros(len(group.rewards), np.float32)
