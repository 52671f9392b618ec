"""1 if the response is the truth."""

from __future__ import annotations

from rftd.workers.rewards.reward import RewardResult
from rftd.workers.tasksets.task import Task


class ExactMatchReward:
    """Compares the texts without the white space around them; what `make demo` trains with."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`accuracy`: 0 or 1."""
        return RewardResult.of(accuracy=1.0 if response.strip() == truth.strip() else 0.0)
