"""The base classes of workflows with the interface of Trinity-RFT's; a user's class derives from one of them."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, ClassVar

from rftd.workers.workflows.math_workflow import THINK_PROMPT
from rftd.workers.workflows.trinity.experience import TrinityExperience
from rftd.workers.workflows.trinity.model import TrinityModel
from rftd.workers.workflows.trinity.rewards import TrinityMathReward, TrinityReward
from rftd.workers.workflows.trinity.task import TrinityTask


def get_logger(name: str | None = None, **_: Any) -> logging.Logger:
    """Returns a logger of the standard library."""
    return logging.getLogger(name or "trinity")


class TrinityWorkflow:
    """One run of a task: `run` or `run_async` returns experiences."""

    can_reset: ClassVar[bool] = False
    can_repeat: ClassVar[bool] = False
    is_async: ClassVar[bool] = False

    def __init__(self, *, task: TrinityTask, model: TrinityModel, auxiliary_models: list[Any] | None = None) -> None:
        self.task = task
        self.model = model
        self.auxiliary_models = auxiliary_models
        self.auxiliary_model_wrappers = auxiliary_models
        self.run_id_base = 0
        self.logger = get_logger(type(self).__module__)

    @property
    def resettable(self) -> bool:
        """True if `reset` prepares the instance for another task."""
        return type(self).can_reset

    @property
    def repeatable(self) -> bool:
        """True if `set_repeat_times` sets the number of runs."""
        return type(self).can_repeat

    @property
    def asynchronous(self) -> bool:
        """True if `run_async` is the method to call."""
        return type(self).is_async

    def reset(self, task: TrinityTask) -> None:
        """Prepares the instance for another task."""
        raise NotImplementedError

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Sets the number of runs, and the number of the first run."""
        raise NotImplementedError("a repeatable workflow defines set_repeat_times()")

    def run(self) -> list[TrinityExperience]:
        """Runs the task."""
        raise NotImplementedError

    async def run_async(self) -> list[TrinityExperience]:
        """Runs the task without blocking its thread."""
        raise NotImplementedError


class TrinityMultiTurn(TrinityWorkflow):
    """A conversation of several turns as one experience."""

    can_repeat: ClassVar[bool] = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Sets the number of runs, and the number of the first run."""
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    def process_messages_to_experience(
        self,
        messages: list[dict[str, Any]],
        reward: float,
        info: dict[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> TrinityExperience:
        """Returns a conversation as an experience, with the drawn ids of each answer; numbers of `info` are metrics."""
        experience = self.model.convert_messages_to_experience(messages)
        experience.info = info = dict(info or {})
        experience.metrics = {name: float(number) for name, number in info.items() if isinstance(number, int | float)}
        experience.truncate_status = experience.truncate_status or truncate_status
        experience.reward = 0.0 if experience.truncate_status == "prompt_truncated" else reward
        return experience


class TrinitySimpleBase(TrinityWorkflow):
    """One prompt with its reward; the base of the two simple workflows."""

    def __init__(self, *, task: TrinityTask, model: TrinityModel, auxiliary_models: list[Any] | None = None) -> None:
        self.reset(task)
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def reset(self, task: TrinityTask) -> None:
        """Reads the task's fields. Raises ValueError for a task without a reward."""
        self.task = task
        self.format_args = task.format_args
        self.system_prompt = task.format_args.system_prompt
        self.reply_prefix = task.format_args.reply_prefix
        self.reward_fn_args = task.reward_fn_args
        self.raw_task = task.raw_task
        self.task_desc = task.task_desc
        self.truth = task.truth
        if not (isinstance(task.reward_fn, type) and issubclass(task.reward_fn, TrinityReward)):
            raise ValueError("`reward_fn` must be a subclass of `RewardFn`: name a default_reward_fn_type")
        self.reward_fn = task.reward_fn(**self.reward_fn_args)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Sets the number of answers of one call, and the number of the first run."""
        self.repeat_times = repeat_times
        self.task.rollout_args.n = repeat_times
        self.run_id_base = run_id_base

    @property
    def rollout_args(self) -> dict[str, Any]:
        """Sampling settings of the task, as arguments of `chat`."""
        return asdict(self.task.rollout_args)

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the conversation: system prompt, task, and the beginning of the answer."""
        messages = [{"role": "user", "content": self.task_desc}]
        if self.system_prompt:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        if self.reply_prefix:
            messages.append({"role": "assistant", "content": self.reply_prefix})
        return messages

    def _scored(self, answers: list[TrinityExperience]) -> list[TrinityExperience]:
        for number, answer in enumerate(answers):
            parts = self.reward_fn(response=answer.response_text, truth=self.truth)
            answer.metrics.update(parts)
            answer.reward = sum(parts.values())
            answer.eid.run = number + self.run_id_base
        return answers


class TrinitySimple(TrinitySimpleBase):
    """One prompt and its answers, each scored by the reward."""

    can_reset: ClassVar[bool] = True
    can_repeat: ClassVar[bool] = True

    def run(self) -> list[TrinityExperience]:
        """Chats once and scores the answers."""
        return self._scored(self.model.chat(self.format_messages(), **self.rollout_args))


class TrinityAsyncSimple(TrinitySimpleBase):
    """As `TrinitySimple`, without blocking its thread."""

    is_async: ClassVar[bool] = True

    async def run_async(self) -> list[TrinityExperience]:
        """Chats once and scores the answers."""
        return self._scored(await self.model.chat_async(self.format_messages(), **self.rollout_args))


class TrinityMath(TrinitySimple):
    """A mathematics problem; without a reward of its own the tags of `math_reward` are requested and scored."""

    def reset(self, task: TrinityTask) -> None:
        """Reads the task's fields, with the reward and the system prompt of mathematics where none is named."""
        if task.reward_fn is None:
            task.reward_fn = TrinityMathReward
        if task.reward_fn is TrinityMathReward and task.format_args.system_prompt is None:
            task.format_args.system_prompt = THINK_PROMPT
        super().reset(task)


class TrinityAsyncMath(TrinityAsyncSimple, TrinityMath):
    """As `TrinityMath`, without blocking its thread."""
