"""What to report of a batch's closed groups, under Trinity-RFT's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rftd.workers.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup


def group_metrics(function: AdvantageFunction, groups: Sequence[ClosedGroup]) -> dict[str, float]:
    """Mean and std of the rewards over groups, and how many experiences of groups here teach nothing."""
    if not groups:
        return {}
    rewards = [group.exact_rewards() for group in groups]
    figures = {
        "reward_mean": [float(each.mean()) for each in rewards],
        "reward_std": [float(each.std(ddof=1)) if len(each) > 1 else 0.0 for each in rewards],
    }
    found = {
        f"group_advantages/{name}/{kind}": float(getattr(np, kind)(values))
        for name, values in figures.items()
        for kind in ("mean", "max", "min")
    }
    idle = [len(group.rewards) for group in groups if not function.informative(group)]
    return found | {"group_advantages/filtered_count": float(sum(idle))}
