"""`ClassWorkflow`: a class written for Trinity-RFT as a workflow of rftd.

Each rollout is one run of the class, on a thread and an event loop of its own, so a class may block. A repeatable class
is asked for one run at a time, as with Trinity-RFT's `max_repeat_times_per_runner: 1`; a resettable one is used again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, ClassVar

import msgspec

from rftd.ops.errors import RolloutError
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.task import Task
from rftd.workers.generation.auxiliary.auxiliary_model import ModelAddress
from rftd.workers.generation.model import Model
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.trinity.calls import RolloutThread
from rftd.workers.workflows.trinity.draws import rollout_results
from rftd.workers.workflows.trinity.model import ModelOfRollout, TrinityModel
from rftd.workers.workflows.trinity.openai import open_client
from rftd.workers.workflows.trinity.rewards import TrinityReward, reward_class
from rftd.workers.workflows.trinity.task import TrinityTask, trinity_task


class ClassWorkflow:
    """Runs a class for each rollout, and accepts only experiences of tokens drawn by the model in that rollout."""

    default_reward: ClassVar[str | None] = "exact_match_reward"
    """Never used: without a named reward the class's task has none."""

    def __init__(self, target: type, taskset: TasksetSpec, *, evaluates: bool = False) -> None:
        """`evaluates` becomes the task's `is_eval`."""
        self._target = target
        self._taskset = taskset
        self._evaluates = evaluates
        self._free: list[Any] = []
        """Resettable instances without a rollout."""

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """Returns the experiences of one run as the steps of the rollout."""
        async with AsyncExitStack() as stack:
            thread = RolloutThread()
            rollout = ModelOfRollout(model, thread, stack)
            addresses = [
                await stack.enter_async_context(auxiliary_model.served()) for auxiliary_model in model.auxiliary_models
            ]
            own_task = trinity_task(
                task,
                self._taskset,
                self._target,
                _reward_of(task, reward, rollout) if task.reward is not None else None,
                evaluates=self._evaluates,
            )
            returned = await thread.run(partial(self._run, own_task, rollout, addresses))
            rollout.read_served()
            return rollout_results(returned, rollout.ledger)

    async def _run(self, task: TrinityTask, rollout: ModelOfRollout, addresses: Sequence[ModelAddress]) -> Any:
        instance = self._instance(task, rollout, addresses)
        if _says(instance, "repeatable", "can_repeat"):
            instance.set_repeat_times(1, 0)
        runs_async = _says(instance, "asynchronous", "is_async", "can_run_async")
        try:
            returned = instance.run_async() if runs_async else instance.run()
            if inspect.isawaitable(returned):
                returned = await returned
        except (SystemExit, KeyboardInterrupt) as leaving:
            # Here and not by the runner: an exit would end the thread's event loop before its task.
            raise RolloutError(f"the class exited: {leaving!r}", fix="let run() return or raise") from leaving
        if _says(instance, "resettable", "can_reset"):
            self._free.append(instance)
        return returned

    def _instance(self, task: TrinityTask, rollout: ModelOfRollout, addresses: Sequence[ModelAddress]) -> Any:
        if self._free:
            instance = self._free.pop()
            instance.model.bind(rollout)
            for client, address in zip(instance.auxiliary_models or (), addresses, strict=False):
                client.base_url, client.api_key = address.base_url, address.api_key
            instance.task = task
            instance.reset(task)
            return instance
        model = TrinityModel()
        model.bind(rollout)
        # As in Trinity-RFT: an asynchronous class awaits its auxiliary models.
        blocking = getattr(self._target, "is_async", False) is not True
        clients = [
            open_client(address.base_url, address.api_key, address.model, blocking=blocking) for address in addresses
        ]
        return task.to_workflow(model, clients or None)


def _reward_of(task: Task, reward: Scorer, rollout: ModelOfRollout) -> type[TrinityReward]:
    """Returns the taskset's reward as a class for one rollout, scored on the rollout's loop."""

    def score(text: str, truth: Any) -> RewardResult:
        row = task if truth is None or truth == task.truth else msgspec.structs.replace(task, truth=str(truth))
        return rollout.thread.wait(reward.score(text, row, turns=rollout.ledger.turns_of(text)))

    return reward_class(score)


def _says(instance: Any, *names: str) -> bool:
    """True if one of the attributes is true; a class may write each as a method, too."""
    for name in names:
        flag = getattr(instance, name, False)
        if flag() if callable(flag) else flag:
            return True
    return False
