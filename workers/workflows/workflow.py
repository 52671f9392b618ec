"""`Workflow`: the procedure of one rollout of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer


class Workflow(Protocol):
    """Calls the model, perhaps several times, and returns the rollout's result.

    One instance serves many rollouts at once: `run` keeps its state in local variables, awaits and never blocks, can be
    cancelled at every await, and lets errors through: the runner turns them into a RolloutError.
    """

    default_reward: ClassVar[str | None]
    """Reward used where neither the row nor the experiment names one; None: naming one is required."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult | Sequence[RolloutResult]:
        """Runs one rollout. Several results are its steps in order, each a sequence with its own prompt.

        The last step's reward is the rollout's. All steps are one experience, and are trained in one batch.
        """
        ...


@runtime_checkable
class SingleTurn(Workflow, Protocol):
    """A workflow with exactly one request, followed by scoring: `run` is `prompt`, generation, `finish`.

    The rollouts of a group are then requested together, halving the explorer's cost for a small model.
    """

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """Returns the ids to generate from, equal for every rollout of the task."""
        ...
