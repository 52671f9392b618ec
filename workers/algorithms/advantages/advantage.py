"""`AdvantageFunction`: how much better than its group each rollout was."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class AdvantageFunction(Protocol):
    """A pure function of the rewards of one closed group, in the order of its members.

    Batches play no part, so splitting a group over several changes nothing.
    """

    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """One number for each rollout, given to each of its trained tokens  # [G] -> [G]"""
        ...

    def informative(self, rewards: NDArray[np.float32]) -> bool:
        """False if the group teaches nothing and need not be planned."""
        ...
