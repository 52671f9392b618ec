"""Base classes of agents with several steps: a reward for each step, or a reward for all steps."""

from __future__ import annotations

from typing import Any, ClassVar

from rftd.workers.workflows.trinity.classes import TrinityWorkflow
from rftd.workers.workflows.trinity.experience import TrinityExperience
from rftd.workers.workflows.trinity.model import TrinityModel
from rftd.workers.workflows.trinity.task import TrinityTask


class _Stepped(TrinityWorkflow):
    """Steps until one says to stop; the answers drawn in a step are its experiences."""

    def __init__(
        self,
        *,
        task: TrinityTask,
        model: TrinityModel,
        auxiliary_models: list[Any] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.client = model.get_openai_client() if use_openai_client else None

    @property
    def max_step_num(self) -> int:
        """Maximum number of steps."""
        raise NotImplementedError

    def step(self, step_num: int) -> bool:
        """Makes one step; False ends the run."""
        raise NotImplementedError

    async def step_async(self, step_num: int) -> bool:
        """Makes one step without blocking the thread; False ends the run."""
        raise NotImplementedError

    def _drawn(self, step_num: int) -> list[TrinityExperience]:
        experiences = self.model.extract_experience_from_history()
        for experience in experiences:
            experience.eid.step = step_num
        return experiences


class StepWiseReward(_Stepped):
    """A run with a reward for each step."""

    def reward(self, exps: list[TrinityExperience], step_num: int) -> float:
        """Returns the reward of one step's experiences."""
        raise NotImplementedError

    def run(self) -> list[TrinityExperience]:
        """Makes the steps and scores each."""
        experiences: list[TrinityExperience] = []
        for step_num in range(self.max_step_num):
            goes_on = self.step(step_num=step_num)
            of_step = self._drawn(step_num)
            _reward(of_step, self.reward(of_step, step_num=step_num))
            experiences += of_step
            if not goes_on:
                break
        return experiences


class AsyncStepWiseReward(StepWiseReward):
    """As `StepWiseReward`, without blocking its thread."""

    is_async: ClassVar[bool] = True

    async def reward_async(self, exps: list[TrinityExperience], step_num: int) -> float:
        """Returns the reward of one step's experiences."""
        raise NotImplementedError

    async def run_async(self) -> list[TrinityExperience]:
        """Makes the steps and scores each."""
        experiences: list[TrinityExperience] = []
        for step_num in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step_num)
            of_step = self._drawn(step_num)
            _reward(of_step, await self.reward_async(of_step, step_num=step_num))
            experiences += of_step
            if not goes_on:
                break
        return experiences


class RewardPropagation(_Stepped):
    """A run with a reward for all its steps."""

    def reward(self, exps: list[TrinityExperience]) -> float:
        """Returns the reward of the run."""
        raise NotImplementedError

    def run(self) -> list[TrinityExperience]:
        """Makes the steps, then scores the run."""
        experiences: list[TrinityExperience] = []
        for step_num in range(self.max_step_num):
            goes_on = self.step(step_num=step_num)
            experiences += self._drawn(step_num)
            if not goes_on:
                break
        return _propagated(experiences, self.reward(experiences))


class AsyncRewardPropagation(RewardPropagation):
    """As `RewardPropagation`, without blocking its thread."""

    is_async: ClassVar[bool] = True

    async def reward_async(self, exps: list[TrinityExperience]) -> float:
        """Returns the reward of the run."""
        raise NotImplementedError

    async def run_async(self) -> list[TrinityExperience]:
        """Makes the steps, then scores the run."""
        experiences: list[TrinityExperience] = []
        for step_num in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step_num)
            experiences += self._drawn(step_num)
            if not goes_on:
                break
        return _propagated(experiences, await self.reward_async(experiences))


def _reward(experiences: list[TrinityExperience], reward: float) -> None:
    for experience in experiences:
        experience.reward = reward


def _propagated(experiences: list[TrinityExperience], reward: float) -> list[TrinityExperience]:
    _reward(experiences, reward)
    for experience in experiences:
        experience.metrics["actual_env_steps"] = experiences[-1].eid.step + 1
    return experiences
