"""Tasks of verifiers v1: `verifiers://my-taskset?size=500`, the id of an installed taskset.

An episode is one answer, scored by the task's own rewards; its metrics are figures beside them. Tasks with tools or in
containers need a harness of verifiers: these are agents, run by `agent_command_workflow`. Further arguments are those
of the taskset's configuration.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import prepare_turn
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Response, SystemMessage, UserMessage, content_text
from verifiers.v1.utils.loaders import taskset_class, taskset_config_type

GENERATED_ROWS = 1000
"""Rows of a taskset without an end, where no size is given."""


class VerifiersTasks:
    """The tasks of one taskset, in the order of its loading."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        size = arguments.pop("size", None)
        kind: Any = taskset_class(name)
        config = taskset_config_type(name).model_validate({"id": name, **arguments})
        taskset = kind(config)
        if kind.toolsets(config) or kind.task_type().NEEDS_CONTAINER:
            raise TypeError(f"taskset {name} has tools or needs a container: run it by agent_command_workflow")
        if size is None and not taskset.bounded:
            size = GENERATED_ROWS
        self._tasks = list(itertools.islice(taskset, size))

    def row(self, index: int) -> dict[str, Any] | None:
        """Returns the task's prompt as messages; the answer is the taskset's own matter."""
        if index >= len(self._tasks):
            return None
        messages = [{"role": message.role, "content": content_text(message.content)} for message in self._prompt(index)]
        return {"prompt": messages, "response": ""}

    def episode(self, index: int, seed: int) -> ScoredTask:
        """Returns an episode of one answer."""
        return ScoredTask(self._tasks[index], self._prompt(index))

    def _prompt(self, index: int) -> list[Any]:
        task = self._tasks[index].data
        system = [SystemMessage(content=task.system_prompt)] if task.system_prompt else []
        return [*system, *([UserMessage(content=task.prompt)] if isinstance(task.prompt, str) else task.prompt or [])]


class ScoredTask:
    """A task, its answer, and the score by its rewards."""

    def __init__(self, task: Any, prompt: list[Any]) -> None:
        self._task = task
        self._prompt = prompt
        recorded = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        state = state_cls(type(task))()
        self._trace: Any = Trace(task=recorded, state=state, agent=AgentInfo(config=AgentConfig()))

    def step(self, action: str) -> tuple[str, bool]:
        """Records the answer as that of an agent."""
        answer = AssistantMessage(content=action)
        response = Response(id="answer", created=0, model="rftd", message=answer, finish_reason="stop")
        prepare_turn(self._trace, self._prompt).commit(response)
        return "", True

    def score(self) -> tuple[float, dict[str, float]]:
        """Returns the weighted sum of the rewards, with each reward and metric by name."""
        asyncio.run(self._task.score(self._trace))
        rewards = {name: reward.value for name, reward in self._trace.rewards.items() if reward is not None}
        metrics = {name: metric for name, metric in self._trace.metrics.items() if metric is not None}
        return sum(rewards.values()), {**metrics, **rewards}

    def close(self) -> None:
        """Has nothing to close."""


def open_tasks(name: str, arguments: dict[str, Any]) -> VerifiersTasks:
    """Returns the tasks of a taskset."""
    return VerifiersTasks(name, arguments)
