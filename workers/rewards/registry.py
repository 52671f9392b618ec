"""Every reward by name; importing this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.workers.plugins import Plugins

if TYPE_CHECKING:
    from rftd.workers.rewards.reward import Reward

REWARDS: Final[Plugins[Reward]] = Plugins(
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
