"""`Workflow`: how one rollout of a task goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer


class Workflow(Protocol):
    """Asks the model, perhaps several times, and says what came of it.

    One instance serves many rollouts at once: `run` keeps its state in local variables. It awaits and never blocks, it
    can be cancelled at every await, and it lets errors through: the runner turns them into a RolloutError.
    """

    default_reward: ClassVar[str | None]
    """Used where neither the row nor the experiment names one; None: naming one is required."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult | Sequence[RolloutResult]:
        """Makes one rollout. Several results are its steps in their order, each a sequence with its own prompt.

        The last one's reward is the rollout's. All steps are one experience, and are trained in one batch.
        """
        ...


@runtime_checkable
class SingleTurn(Workflow, Protocol):
    """A workflow that asks once and then has the answer scored: `run` is prompt, generation, `finish`.

    The rollouts of a group then ask together, which costs a small model's explorer half as much.
    """

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """The ids to generate from; the same for every rollout of the task."""
        ...
