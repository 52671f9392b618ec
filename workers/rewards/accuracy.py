"""1 if the answers agree."""

from __future__ import annotations

from rftd.workers.rewards.answer import accuracy
from rftd.workers.rewards.reward import RewardResult
from rftd.workers.tasksets.task import Task


class AccuracyReward:
    """Finds the answer in tags, a box, after `####` or in the closing words, and compares it by value."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`accuracy`: 0 or 1."""
        return RewardResult.of(accuracy=accuracy(response, truth))
