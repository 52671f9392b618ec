"""`ToolCallWorkflow`: a rollout of one answer calling functions, compared with the calls of the row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.simple import finish

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

TOOLS_PROMPT: Final = """\
You may call these functions, described in JSON:
{tools}

First think between <think> and </think>. Then call functions, each as one JSON object with "name" and "arguments" \
between <tool_call> and </tool_call>:
<think> your reasoning </think>
<tool_call>
{{"name": "the function", "arguments": {{"argument": "value"}}}}
</tool_call>"""
"""System prompt with the functions."""


class ToolCallWorkflow:
    """Describes the functions in the row's column `tools_key` in the system prompt; always chats, and calls nothing."""

    default_reward: ClassVar[str | None] = "tool_call_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    def __init__(self, *, tools_key: str = "tools") -> None:
        """`tools_key` is the column with the functions."""
        self._tools_key = tools_key

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the one response, with its reward. Raises RolloutError for tools in no JSON."""
        response = await model.chat(self._messages(task), reply_prefix=task.reply_prefix or "")
        return await finish(task, response, reward)

    def prompt(self, task: Task, model: Model, reward: Scorer) -> list[int]:
        """Returns the prompt ids of the conversation."""
        return model.chat_prompt(self._messages(task), reply_prefix=task.reply_prefix or "")

    def _messages(self, task: Task) -> tuple[Message, ...]:
        """Returns the conversation with the functions in its system message. Raises RolloutError for tools in no
        JSON.
        """
        tools: Any = task.raw.get(self._tools_key) or []
        if isinstance(tools, str):
            try:
                tools = json.loads(tools)
            except ValueError as error:
                raise RolloutError(f"column {self._tools_key!r} is no JSON: {error}", where=task.where) from error
        offered = TOOLS_PROMPT.format(tools=json.dumps(tools, ensure_ascii=False))
        messages = list(task.messages)
        own = [messages.pop(0).content] if messages[0].role == "system" else [task.system_prompt or ""]
        return (Message("system", "\n\n".join(filter(None, [*own, offered]))), *messages)
