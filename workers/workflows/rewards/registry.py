"""Every reward by name; importing this module imports no reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

if TYPE_CHECKING:
    from rftd.workers.workflows.rewards.reward import Reward

REWARDS: Final[Plugins[Reward]] = Plugins(
    "reward",
    group="rftd.rewards",
    table={
        "math_reward": "rftd.workers.workflows.rewards.rule_based:MathReward",
        "math_boxed_reward": "rftd.workers.workflows.rewards.rule_based:MathBoxedReward",
        "math_dapo_reward": "rftd.workers.workflows.rewards.rule_based:MathDapoReward",
        "math_verify_reward": "rftd.workers.workflows.rewards.math_verify_reward:MathVerifyReward",
        "reward_model": "rftd.workers.workflows.rewards.reward_model:RewardModel",
        "llm_judge_reward": "rftd.workers.workflows.rewards.llm_judge:LlmJudgeReward",
        "rubric_judge_reward": "rftd.workers.workflows.rewards.rubric_judge:RubricJudgeReward",
        "tool_call_reward": "rftd.workers.workflows.rewards.tool_call:ToolCallReward",
        "code_reward": "rftd.workers.workflows.rewards.code:CodeReward",
        "zero_reward": "rftd.workers.workflows.rewards.rule_based:ZeroReward",
        "accuracy_reward": "rftd.workers.workflows.rewards.rule_based:AccuracyReward",
        "countdown_reward": "rftd.workers.workflows.rewards.countdown:CountdownReward",
        "format_reward": "rftd.workers.workflows.rewards.rule_based:FormatReward",
        "exact_match_reward": "rftd.workers.workflows.rewards.rule_based:ExactMatchReward",
    },
    extras={"math_verify_reward": ("math_verify", "math")},
)
"""The rewards by name."""
