"""`rec`: the reward less the mean of its group, optionally without surplus failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.advantages.advantage import OneGroup
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats


@dataclass(frozen=True, kw_only=True)
class RecAdvantage(OneGroup):
    """reward - mean, of those that are kept; a single one that is kept has its reward as advantage."""

    epsilon: float = 1e-6
    std_normalize: bool = False
    """Divide by the std of the population, plus epsilon."""
    drop: str | None = None
    """`balance`: of the members below the mean, so many have no advantage that they are not more than the others."""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")
        if self.drop not in (None, "balance"):
            raise ConfigError(
                f"drop is {self.drop!r}", field="advantage_fn_args.drop", fix="use balance, or leave it out"
            )

    def of_group(self, group: ClosedGroup) -> Floats:
        """In float64, rounded once at the end  # [G]"""
        rewards = group.exact_rewards()
        kept = self._kept(group)
        mean, std = (float(rewards[kept].mean()), float(rewards[kept].std())) if kept.sum() > 1 else (0.0, 1.0)
        centred = (rewards - mean) / (std + self.epsilon if self.std_normalize else 1.0)
        return np.where(kept, centred, 0.0).astype(np.float32)

    def _kept(self, group: ClosedGroup) -> Any:
        """Which members keep their advantage: by chance, but the same whenever the group is asked for  # [G] bool"""
        rewards = group.exact_rewards()
        below = rewards < rewards.mean()
        surplus = int(below.sum()) - int((~below).sum())
        kept = np.ones(len(rewards), np.bool_)
        if self.drop == "balance" and surplus > 0:
            order = np.where(below, group.draws(), 2.0).argsort()
            kept[order[:surplus]] = False
        return kept
