"""Accuracy of the last boxed answer."""

from __future__ import annotations

from rftd.workers.rewards.answer import agree, last_boxed, truth_of
from rftd.workers.rewards.reward import RewardResult
from rftd.workers.tasksets.task import Task


class MathBoxedReward:
    """0 or 1 for the last `\\boxed{...}`; `with_think` takes `format_score_coef` off where no thinking is tagged."""

    def __init__(self, *, with_think: bool = False, format_score_coef: float = 0.1) -> None:
        self._with_think = with_think
        self._format_score_coef = format_score_coef

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`accuracy`: 0 or 1, and `format_score`: 0 or minus the coefficient."""
        boxed = last_boxed(response)
        right = boxed is not None and agree(boxed, truth_of(truth))
        missing = self._with_think and not _thinks(response)
        return RewardResult.of(
            accuracy=1.0 if right else 0.0, format_score=-self._format_score_coef if missing else 0.0
        )


def _thinks(response: str) -> bool:
    response = response.strip()
    return response.startswith("<think>") and "</think>" in response
