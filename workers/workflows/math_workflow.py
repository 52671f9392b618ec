"""`MathWorkflow` and `MathBoxedWorkflow`: rollouts of one mathematics problem and one response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.simple import SimpleWorkflow, finish, with_system_prompt

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

THINK_PROMPT: Final = """\
You are given a mathematics problem. First think it through, then give the answer. Write the reasoning between \
<think> and </think> and only the final answer between <answer> and </answer>:
<think> your reasoning </think>
<answer> the final answer </answer>"""
"""System prompt requesting thought and answer in tags."""
BOXED_PROMPT: Final = """\
You are given a mathematics problem. Reason step by step, and put the final answer within \\boxed{}."""
"""System prompt requesting a boxed answer."""
THINK_BOXED_PROMPT: Final = """\
You are given a mathematics problem. First think it through between <think> and </think>, then put the final answer \
within \\boxed{}."""
"""System prompt requesting a tagged thought and a boxed answer."""


class MathWorkflow:
    """Always chats. Without a system prompt, and with the reward `math_reward`, requests the tags scored by it."""

    default_reward: ClassVar[str | None] = "math_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the one response, with its reward."""
        response = await model.chat(self._messages(task, reward), reply_prefix=task.reply_prefix or "")
        return await finish(task, response, reward)

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """Returns the prompt ids of the conversation."""
        return model.chat_prompt(self._messages(task, reward), reply_prefix=task.reply_prefix or "")

    def _messages(self, task: Task, reward: Scorer) -> tuple[Message, ...]:
        """Returns the conversation, with the system prompt for tags where none is set."""
        system_prompt = task.system_prompt
        if system_prompt is None and reward.name == "math_reward":
            system_prompt = THINK_PROMPT
        return with_system_prompt(task, system_prompt)


class MathRmWorkflow(MathWorkflow):
    """A `MathWorkflow` judged by the first auxiliary model where no reward is named."""

    default_reward: ClassVar[str | None] = "llm_judge_reward"
    """Name of the reward for tasksets that name no reward themselves."""


class RubricJudgeWorkflow(MathWorkflow):
    """A `MathWorkflow` rated by the first auxiliary model by the row's rubrics where no reward is named."""

    default_reward: ClassVar[str | None] = "rubric_judge_reward"
    """Name of the reward for tasksets that name no reward themselves."""


class OnPolicyDistillWorkflow(SimpleWorkflow):
    """A `SimpleWorkflow` without a reward where none is named: a trainer's teacher judges the tokens."""

    default_reward: ClassVar[str | None] = "zero_reward"
    """Name of the reward for tasksets that name no reward themselves."""


class MathBoxedWorkflow:
    """Requests a boxed answer where no system prompt is set; with `with_think`, think tags too.

    Chats; with `use_base`, completes a text with the speakers' names instead, for a model without a chat template. The
    reward's own `with_think` is set in `reward_fn_args`.
    """

    default_reward: ClassVar[str | None] = "math_boxed_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    def __init__(self, *, with_think: bool = False, use_base: bool = False) -> None:
        """`use_base`: the model continues a text with the speakers' names, without a chat template."""
        self._prompt = THINK_BOXED_PROMPT if with_think else BOXED_PROMPT
        """System prompt used for tasks without a system prompt of their own."""
        self._use_base = use_base

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the one response, with its reward."""
        if self._use_base:
            response = await model.generate(self.prompt(task, model, reward))
        else:
            response = await model.chat(self._messages(task), reply_prefix=task.reply_prefix or "")
        return await finish(task, response, reward)

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """Returns the prompt ids of the conversation, or of its text with the speakers' names."""
        messages = self._messages(task)
        if self._use_base:
            return model.bare_prompt(_with_speakers(messages) + (task.reply_prefix or ""))
        return model.chat_prompt(messages, reply_prefix=task.reply_prefix or "")

    def _messages(self, task: Task) -> tuple[Message, ...]:
        """Returns the conversation with its system prompt."""
        return with_system_prompt(task, self._prompt if task.system_prompt is None else task.system_prompt)


def _with_speakers(messages: Sequence[Message]) -> str:
    """Returns the text for a base model to continue as the assistant, in Trinity-RFT's form so that its models fit."""
    lines = [
        f"System:{message.content}" if message.role == "system" else f"{message.role.capitalize()}:\n{message.content}"
        for message in messages
    ]
    return "\n".join([*lines, "Assistant:\n"])
