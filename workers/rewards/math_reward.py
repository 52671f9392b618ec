"""Accuracy of a mathematics answer, and whether think and answer tags are there."""

from __future__ import annotations

from rftd.workers.rewards.answer import accuracy
from rftd.workers.rewards.form import FORMAT_REWARD, tags_at_end
from rftd.workers.rewards.reward import RewardResult
from rftd.workers.tasksets.task import Task


class MathReward:
    """-0.1 to 1.1: the reward of `math_workflow`. A right number without tags still counts."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`accuracy`: 0 or 1, and `format_score`: 0.1 with tags, else -0.1."""
        return RewardResult.of(
            accuracy=accuracy(response, truth),
            format_score=FORMAT_REWARD if tags_at_end(response) else -FORMAT_REWARD,
        )
