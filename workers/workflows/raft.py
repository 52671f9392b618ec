"""`RaftWorkflow`: a rollout is the best of several answers to a task, for training by `raft`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.simple import SimpleWorkflow

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

Tries = Annotated[int, msgspec.Meta(ge=1, le=64)]


class RaftWorkflow:
    """Draws answers as `simple_workflow`, one after another, until one earns `enough` or after `tries` of them.

    The first answer with the largest reward is the rollout, with the number of answers as the figure `tries`. With
    `algorithm_type: raft` and `repeat_times: 1` this is RAFT without a group (Dong et al. 2023, arXiv 2304.06767).
    """

    default_reward: ClassVar[str | None] = "math_reward"

    def __init__(self, *, tries: Tries = 4, enough: float = 1.0) -> None:
        """`tries` is the maximum number of answers; `enough` is the reward from which on no further answer is drawn."""
        self._tries = tries
        self._enough = enough
        self._one = SimpleWorkflow()

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the best answer; of a prompt without room, the unscored rollout."""
        best = await self._one.run(task, model, reward)
        drawn = 1
        while drawn < self._tries and best.reward < self._enough and best.finish != "prompt_truncated":
            answer = await self._one.run(task, model, reward)
            best = answer if answer.reward > best.reward else best
            drawn += 1
        return msgspec.structs.replace(best, metrics={**best.metrics, "tries": float(drawn)})
