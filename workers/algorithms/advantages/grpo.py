"""`grpo`: the reward relative to its group, in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoAdvantage:
    """(reward - mean) / (std + epsilon), with the unbiased std; a group of one has mean 0 and std 1."""

    epsilon: float = 1e-6
    std_threshold: float | None = None
    """Groups whose std is not above it are not informative."""
    std_cal_level: str = "group"
    rank_penalty: float | None = None
    duplicate_experiences: bool = False

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")
        if self.std_threshold is not None and self.std_threshold < 0:
            raise ConfigError(
                f"std_threshold is {self.std_threshold}", field="advantage_fn_args.std_threshold", fix="use 0 or more"
            )
        if self.std_cal_level != "group" or self.rank_penalty is not None or self.duplicate_experiences:
            raise ConfigError(
                "only advantages within one closed group are computed: std_cal_level: batch, rank_penalty and "
                "duplicate_experiences would make them depend on the batch",
                field="advantage_fn_args",
                fix="leave the three out",
            )

    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """In float64, rounded once at the end  # [G] -> [G]"""
        exact = rewards.astype(np.float64)
        mean, std = _moments(exact)
        return ((exact - mean) / (std + self.epsilon)).astype(np.float32)

    def informative(self, rewards: NDArray[np.float32]) -> bool:
        """False if the std is at or below `std_threshold`; a group of one has no std and is none either."""
        if self.std_threshold is None:
            return True
        return len(rewards) > 1 and _moments(rewards.astype(np.float64))[1] > self.std_threshold


def _moments(rewards: NDArray[np.float64]) -> tuple[float, float]:
    if len(rewards) < 2:
        return 0.0, 1.0
    return float(rewards.mean()), float(rewards.std(ddof=1))
