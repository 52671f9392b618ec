"""`TrinityReward`: the base class of rewards; rftd's own rewards under Trinity-RFT's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import RewardResult


class TrinityReward(ABC):
    """A reward called with `response`, `truth` and `prompt` by name; returns named parts, and the reward is their
    sum.
    """

    def __init__(self, **arguments: Any) -> None:
        """Keeps the arguments; a subclass may declare its own."""
        self.arguments = arguments

    @abstractmethod
    def __call__(self, **fields: Any) -> dict[str, float]:
        """Returns the parts of the reward."""


class OwnReward(TrinityReward):
    """A built-in reward of rftd, opened with the arguments of its constructor or of a call."""

    reward: ClassVar[str]

    def __call__(
        self, response: str = "", prompt: str | None = None, truth: Any = None, **fields: Any
    ) -> dict[str, float]:
        """Returns the parts of the built-in reward."""
        declared = REWARDS.arguments(self.reward) or ()
        further_arguments = {name: field for name, field in fields.items() if name in declared}
        opened: Any = REWARDS.open(self.reward, {**self.arguments, **further_arguments})
        truth_text = "" if truth is None else str(truth)
        task = Task(
            taskset="", row=0, epoch=0, prompt=str(prompt or ""), messages=(), truth=truth_text, workflow="", raw={}
        )
        scored: RewardResult = opened.score(response, truth_text, task)
        return parts_of(scored)


class TrinityMathReward(OwnReward):
    """Accuracy, and the form of think and answer tags."""

    reward = "math_reward"


class TrinityBoxedReward(OwnReward):
    """Accuracy of the boxed answer."""

    reward = "math_boxed_reward"


class TrinityAccuracyReward(OwnReward):
    """Accuracy alone."""

    reward = "accuracy_reward"


class TrinityFormatReward(OwnReward):
    """The form of think and answer tags alone."""

    reward = "format_reward"


class TrinityCountdownReward(OwnReward):
    """An expression of the numbers with the target's value."""

    reward = "countdown_reward"


class TrinityDapoReward(OwnReward):
    """Accuracy less the penalty of overlong answers."""

    reward = "math_dapo_reward"


def parts_of(scored: RewardResult) -> dict[str, float]:
    """Returns parts with the reward as their sum, as Trinity-RFT's classes expect."""
    parts = dict(scored.parts)
    return parts if parts and abs(sum(parts.values()) - scored.value) < 1e-9 else {"reward": scored.value}


def reward_class(score: Callable[[str, Any], RewardResult]) -> type[TrinityReward]:
    """Returns a class whose instances score by `score(response, truth)`: the reward of a taskset for one rollout."""

    class TasksetReward(TrinityReward):
        """The reward named by the taskset; its arguments are applied already."""

        def __call__(self, response: str = "", truth: Any = None, **fields: Any) -> dict[str, float]:
            """Returns the parts of the taskset's reward."""
            experience = fields.get("experience")
            text = response or getattr(experience, "response_text", None) or ""
            return parts_of(score(text, truth))

    return TasksetReward


class RewardOfClass:
    """A user's `TrinityReward` as a reward of rftd."""

    def __init__(self, reward: type[TrinityReward], arguments: Mapping[str, Any]) -> None:
        """Raises whatever the class raises for its arguments."""
        self._reward = reward(**arguments)

    def score(self, response: str, truth: str, task: Task) -> dict[str, float]:
        """Returns the parts of the user's reward."""
        return self._reward(response=response, truth=truth, prompt=task.prompt)
