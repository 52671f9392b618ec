"""`WorkflowRunner`: one attempt at one rollout, with whatever goes wrong named by its task's row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast
from uuid import UUID

import msgspec
import numpy as np

from rftd.ops.errors import ConfigError, RftdError, RolloutError
from rftd.streams.events.experience import RunStep
from rftd.streams.spec.spec import ModelSpec, SamplingSpec, TasksetSpec
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.rollout_models import ModelsOfRollout, no_auxiliary_models
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import GroupEngine, RolloutEngine
from rftd.workers.generation.model import Model
from rftd.workers.workflows.attempt import TaskRollout
from rftd.workers.workflows.own_tasks import OwnRollout, rollout_of
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.result import RolloutResult, named
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.together import Together
from rftd.workers.workflows.trajectory import shifted
from rftd.workers.workflows.workflow import SingleTurn, Workflow


def joined(results: Sequence[RolloutResult]) -> RolloutResult:
    """The steps of a rollout in their order, as one: its reward, priority, metrics and end are those of the last."""
    if len(results) == 1 and results[0].step_reward is None and not results[0].state:
        return results[0]
    # Of all steps or of none: zeros in their place would be taken for tokens of probability 1.
    processed = [each.processed_logprobs for each in results if each.processed_logprobs is not None]
    return msgspec.structs.replace(
        results[-1],
        tokens=np.concatenate([each.tokens for each in results]),
        prompt_tokens=sum(each.prompt_tokens for each in results),
        loss_mask=np.concatenate([each.loss_mask for each in results]),
        logprobs=np.concatenate([each.logprobs for each in results]),
        processed_logprobs=np.concatenate(processed) if len(processed) == len(results) else None,
        turns=sum(each.turns for each in results),
        spans=tuple(shifted((each.spans, len(each.loss_mask)) for each in results)),
        sampling=tuple(shifted((each.sampling, len(each.loss_mask)) for each in results)),
        steps=tuple(
            RunStep(len(each.tokens), each.prompt_tokens, each.reward, each.step_reward, each.state) for each in results
        ),
    )


class WorkflowRunner:
    """Runs the tasks of one taskset; opens each workflow and reward that its rows name once."""

    def __init__(
        self,
        taskset: TasksetSpec,
        *,
        model: ModelSpec,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        endpoint: ModelEndpoint | None = None,
        auxiliary: ModelsOfRollout = no_auxiliary_models,
        reward_environ: Mapping[str, str] | None = None,
    ) -> None:
        """Raises ConfigError if the taskset's own workflow or reward cannot be opened.

        `endpoint` serves the model to workflows that run other programs; `auxiliary` gives the auxiliary models for an
        attempt at a rollout; processes of rewards have the environment `reward_environ`.
        """
        self._reward_environ = reward_environ
        self._endpoint = endpoint
        self._auxiliary = auxiliary
        self._taskset = taskset
        self._model = model
        self._engine = engine
        self._groups = engine if isinstance(engine, GroupEngine) else None
        self._tokenizer = tokenizer
        self._workflows: dict[str, Workflow] = {}
        self._scorers: dict[str, Scorer] = {}
        self._single: dict[str, bool] = {}
        self._open(taskset.workflow, taskset.reward)

    async def run(
        self, task: Task, rollout: UUID, *, seed: UUID | None = None, sampling: SamplingSpec | None = None
    ) -> RolloutResult:
        """Makes one attempt at one rollout; the same ids and weights give the same tokens on a deterministic engine.

        `seed` is what sampling seeds derive from, the rollout's id if None; `sampling` replaces the taskset's. Takes as
        long as the workflow takes: the caller bounds it, by cancelling. Raises RolloutError, and nothing else.
        """
        asked = self._auxiliary(rollout, rollout if seed is None else seed)
        model = Model(
            self._engine,
            self._tokenizer,
            spec=self._model,
            sampling=sampling or self._taskset.sampling,
            rollout=rollout,
            seed=seed,
            endpoint=self._endpoint,
            auxiliary_models=asked.models,
        )
        attempt = asyncio.current_task()
        own: OwnRollout | None = None
        try:
            workflow, scorer = self._open(task.workflow, task.reward)
            with rollout_of(task) as own:
                given = await workflow.run(task, model, scorer.beside(asked.models))
            results = list(given) if isinstance(given, Sequence) else [given]
            for result in results:
                if not isinstance(result, RolloutResult):
                    raise RolloutError(f"the workflow gave a {type(result).__name__}, not a RolloutResult")
                result.check(self._model.max_model_len)
            if not results:
                raise RolloutError("the workflow gave no step of a rollout", fix="return at least one RolloutResult")
        except RolloutError as error:
            error.where = error.where or task.where
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and attempt is not None and attempt.cancelling():
                raise  # whoever waits for the rollout gave it up
            if isinstance(error, GeneratorExit) and not _runs(attempt):
                raise  # the coroutine is closed from outside
            if own is not None and own.exit is not None:
                raise own.exit from error
            # An exit of code that the workflow runs would else end the explorer, with every other rollout; one that
            # passes for a cancellation of ours would be waited for.
            raise named(error, task) from error
        result = joined(results)
        return msgspec.structs.replace(result, auxiliary=asked.turns) if asked.turns else result

    def asks_once(self, task: Task) -> bool:
        """True if the task's rollouts can be made `together`.

        That takes a workflow of ours that asks once, a reward that never waits, and an engine that answers several.
        """
        if self._groups is None or not WORKFLOWS.builtin(task.workflow):
            return False
        try:
            workflow, scorer = self._open(task.workflow, task.reward)
        except RftdError:
            return False  # `run` says why
        # Kept by name, because a check of a runtime protocol costs more than the rest of a rollout's accounting.
        single = self._single.get(task.workflow)
        if single is None:
            single = self._single[task.workflow] = isinstance(workflow, SingleTurn)
        return single and scorer.quick

    def together(self, rollouts: Sequence[TaskRollout]) -> Together:
        """An attempt at rollouts of tasks that all ask once, as one request to the engine."""
        assert self._groups is not None, "asks_once() says no"
        return Together(
            rollouts,
            self._opened_single,
            engine=self._groups,
            tokenizer=self._tokenizer,
            spec=self._model,
            sampling=self._taskset.sampling,
        )

    def _opened_single(self, task: Task) -> tuple[SingleTurn, Scorer]:
        workflow, scorer = self._open(task.workflow, task.reward)
        return cast(SingleTurn, workflow), scorer

    def _open(self, name: str, reward: str | None) -> tuple[Workflow, Scorer]:
        """The arguments of the experiment go to the workflow and reward that it names, not to those of single rows."""
        taskset = self._taskset
        # Opened once for all rollouts: a reward may load a model, and workflows keep no state of a rollout.
        if name not in self._workflows:
            self._workflows[name] = WORKFLOWS.open(name, taskset.workflow_args if name == taskset.workflow else None)
        workflow = self._workflows[name]
        wanted = reward or _own_reward(workflow, name, taskset)
        if wanted not in self._scorers:
            own = wanted == taskset.reward or (taskset.reward is None and name == taskset.workflow)
            self._scorers[wanted] = open_scorer(
                wanted, taskset.reward_args if own else None, environ=self._reward_environ
            )
        return workflow, self._scorers[wanted]


def check_names(taskset: TasksetSpec) -> None:
    """Raises ConfigError if the taskset names a workflow or reward that nobody registered, or lacks a reward.

    Imports the workflow only where no reward is named.
    """
    WORKFLOWS.check(taskset.workflow)
    if taskset.reward is not None:
        REWARDS.check(taskset.reward)
    else:
        _own_reward(WORKFLOWS.load(taskset.workflow), taskset.workflow, taskset)


def _own_reward(workflow: object, name: str, taskset: TasksetSpec) -> str:
    wanted = getattr(workflow, "default_reward", None)
    if wanted is None:
        raise ConfigError(
            f"workflow {name!r} has no reward of its own and taskset {taskset.name!r} names none",
            field="default_reward_fn_type",
            fix=f"name one of: {', '.join(REWARDS.names())}",
        )
    return str(wanted)


def _runs(task: asyncio.Task[object] | None) -> bool:
    """True if the caller is in a step of the task; a coroutine that is closed may be in no loop at all."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False
