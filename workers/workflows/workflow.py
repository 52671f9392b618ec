"""`Workflow`: how one rollout of a task goes."""

from __future__ import annotations

from typing import ClassVar, Protocol

from rftd.workers.chat.model import Model
from rftd.workers.rewards.scorer import Scorer
from rftd.workers.tasksets.task import Task
from rftd.workers.workflows.result import RolloutResult


class Workflow(Protocol):
    """Asks the model, perhaps several times, and says what came of it.

    One instance serves many rollouts at once: `run` keeps its state in local variables. It awaits and never blocks, it
    can be cancelled at every await, and it lets errors through: the runner turns them into a RolloutError.
    """

    default_reward: ClassVar[str | None]
    """Used where neither the row nor the experiment names one; None: naming one is required."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """One finished rollout."""
        ...
