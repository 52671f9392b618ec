"""`none`: for losses that use no advantage, such as sft."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class NoAdvantage:
    """Zero for every rollout."""

    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Zeros  # [G] -> [G]"""
        return np.zeros(len(rewards), np.float32)

    def informative(self, rewards: NDArray[np.float32]) -> bool:
        """True: no reward decides it."""
        return True
