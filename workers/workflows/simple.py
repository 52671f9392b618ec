"""`SimpleWorkflow`: a rollout of one prompt, one response and one reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.train_row import plain_prompt
from rftd.workers.generation.response import Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import one_turn

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

_UNSCORED: Final = RewardResult(value=0.0)
"""Reward of a truncated prompt."""


class SimpleWorkflow:
    """Chats, or completes the bare prompt where the taskset's `prompt_type` is `raw`.

    A model without a chat template can therefore train on raw tasksets, in the form used by SFT.
    """

    default_reward: ClassVar[str | None] = None
    """None: the taskset has to name a reward."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the one response, with its reward."""
        if task.bare:
            return await finish(task, await model.generate(self.prompt(task, model, reward)), reward)
        # As messages, because a model behind a service accepts no ids.
        messages = with_system_prompt(task, task.system_prompt)
        return await finish(task, await model.chat(messages, reply_prefix=task.reply_prefix or ""), reward)

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """Returns the prompt ids of the conversation, or of the bare prompt."""
        if task.bare:
            text = plain_prompt(task.prompt, system_prompt=task.system_prompt, reply_prefix=task.reply_prefix)
            return model.bare_prompt(text)
        messages = with_system_prompt(task, task.system_prompt)
        return model.chat_prompt(messages, reply_prefix=task.reply_prefix or "")


def with_system_prompt(task: Task, system_prompt: str | None) -> tuple[Message, ...]:
    """Returns the task's conversation with the system prompt, unless the task has a system message already."""
    if not system_prompt or task.messages[0].role == "system":
        return task.messages
    return (Message("system", system_prompt), *task.messages)


async def finish(task: Task, response: Response, reward: Scorer) -> RolloutResult:
    """Scores the response and returns the rollout. A truncated prompt is not scored; the reply prefix is part of the
    scored text.
    """
    if response.truncated:
        return one_turn(response, _UNSCORED)
    return one_turn(response, await reward.score((task.reply_prefix or "") + response.text, task, turns=(response,)))


def finish_now(task: Task, response: Response, reward: Scorer) -> RolloutResult:
    """Returns the result of `finish` without awaiting: the reward must be quick."""
    if response.truncated:
        return one_turn(response, _UNSCORED)
    return one_turn(response, reward.score_now((task.reply_prefix or "") + response.text, task, turns=(response,)))
