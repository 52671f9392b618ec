"""`FirstPrompts`: the first prompts of a taskset's tasks, made without generating or scoring."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from rftd.streams.spec.spec import ModelSpec, TasksetSpec
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.generation.model import Model
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.simple import with_system_prompt
from rftd.workers.workflows.workflow import SingleTurn

_NOBODY: Final = UUID(int=0)
"""Id for a rollout that is never made, because only prompts are."""


class _NoReward:
    """Stand-in for a reward: a prompt depends only on the reward's name, and opening a reward may load a model."""

    def score(self, response: str, truth: str, task: Task, **_: Any) -> float:
        """Raises AssertionError: nothing is scored when only prompts are made."""
        raise AssertionError(task.where)


class _NoEngine:
    """Stand-in for a rollout engine: prompts are made before anything is generated."""

    version = (-1, -1)
    """Version and generation of no weights at all."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Raises AssertionError: nothing is generated when only prompts are made."""
        raise AssertionError(request)

    async def load_weights(self, weights: WeightsRef) -> str:
        """Raises AssertionError: no weights are needed for prompts."""
        raise AssertionError(weights)

    def stats(self) -> EngineStats:
        """Returns empty counters."""
        return EngineStats(tokens_total=0, requests_total=0, running=0, waiting=0)

    async def close(self) -> None:
        """Does nothing."""


class FirstPrompts:
    """Makes the prompts of one taskset as its explorers would; third-party workflows are not run.

    Raises ConfigError if the taskset's workflow cannot be opened.
    """

    def __init__(self, taskset: TasksetSpec, model: ModelSpec, tokenizer: Tokenizer) -> None:
        """`model` is the model of the experiment."""
        self._taskset = taskset
        self._model = Model(_NoEngine(), tokenizer, spec=model, sampling=taskset.sampling, rollout=_NOBODY)
        """Model that makes prompts and draws nothing."""
        self._workflow = self._open_single_turn(taskset.workflow)
        """The built-in single-turn workflow; None for another one."""

    def of(self, task: Task) -> list[int]:
        """Returns the prompt's ids; for a workflow other than a built-in single-turn one, the ids of the task's
        conversation.

        Raises DataError if a chat template is needed and the model has none.
        """
        workflow = self._workflow if task.workflow == self._taskset.workflow else self._open_single_turn(task.workflow)
        if workflow is None:
            return self._model.chat_prompt(with_system_prompt(task, task.system_prompt))
        name = task.reward or getattr(workflow, "default_reward", None) or ""
        return workflow.prompt(task, self._model, Scorer(name, _NoReward(), on_thread=False))

    def _open_single_turn(self, name: str) -> SingleTurn | None:
        """Returns the workflow if it is built-in and single-turn; else None."""
        if not WORKFLOWS.builtin(name):
            return None
        arguments = self._taskset.workflow_args if name == self._taskset.workflow else None
        workflow = WORKFLOWS.open(name, arguments)
        return workflow if isinstance(workflow, SingleTurn) else None
