"""Every reward by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

from rftd.workers.plugins import Plugins
from rftd.workers.rewards.reward import Reward

REWARDS: Final = Plugins[Reward](
    "reward",
    group="rftd.rewards",
    table={
        "math_reward": "rftd.workers.rewards.math_reward:MathReward",
        "math_boxed_reward": "rftd.workers.rewards.boxed:MathBoxedReward",
        "accuracy_reward": "rftd.workers.rewards.accuracy:AccuracyReward",
        "format_reward": "rftd.workers.rewards.form:FormatReward",
        "exact_match_reward": "rftd.workers.rewards.exact_match:ExactMatchReward",
    },
)
