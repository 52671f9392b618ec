"""Figures of a batch's closed groups, under Trinity-RFT's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.advantages.moments import mean_and_std


def group_metrics(function: AdvantageFunction, groups: Sequence[ClosedGroup]) -> dict[str, float]:
    """Returns mean and std of the groups' rewards, and the number of experiences in uninformative groups."""
    if not groups:
        return {}
    figures: dict[str, float] = {}
    moments = np.array([mean_and_std(group.exact_rewards()) for group in groups])
    for name, values in zip(("reward_mean", "reward_std"), moments.T.copy(), strict=True):
        figures[f"group_advantages/{name}/mean"] = float(values.mean())
        figures[f"group_advantages/{name}/max"] = float(values.max())
        figures[f"group_advantages/{name}/min"] = float(values.min())
    idle = [len(group.rewards) for group in groups if not function.informative(group)]
    return figures | {"group_advantages/filtered_count": float(sum(idle))}
