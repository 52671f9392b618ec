"""`WorkflowRunner`: one attempt at one rollout, with every error named by its task's row."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast
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
from rftd.workers.workflows.agent_program import AgentProgramWorkflow
from rftd.workers.workflows.attempt import TaskRollout
from rftd.workers.workflows.batched_rollouts import BatchedRollouts
from rftd.workers.workflows.class_path import check_class_path, class_path, load_class_path
from rftd.workers.workflows.own_tasks import OwnRollout, rollout_of
from rftd.workers.workflows.registry import WORKFLOWS, check_workflow
from rftd.workers.workflows.result import RolloutResult, named
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.source import SourceName, agent_source, source_name
from rftd.workers.workflows.trajectory import shifted
from rftd.workers.workflows.workflow import SingleTurn, Workflow
from rftd.workers.workflows.workflow_source import open_workflow_class, open_workflow_source

SILENT_ROLLOUTS: Final = 64
"""Number of a workflow's rollouts after which a declared role without any sequence is reported."""


def joined(steps: Sequence[RolloutResult]) -> RolloutResult:
    """Joins the steps of a rollout in order; reward, priority, metrics and finish are the last step's."""
    if len(steps) == 1 and steps[0].step_reward is None and not steps[0].state and not steps[0].role:
        return steps[0]
    # From all steps or none: zeros for missing ones would be taken for tokens of probability 1.
    processed = [step.processed_logprobs for step in steps if step.processed_logprobs is not None]
    return msgspec.structs.replace(
        steps[-1],
        tokens=np.concatenate([step.tokens for step in steps]),
        prompt_tokens=sum(step.prompt_tokens for step in steps),
        loss_mask=np.concatenate([step.loss_mask for step in steps]),
        logprobs=np.concatenate([step.logprobs for step in steps]),
        processed_logprobs=np.concatenate(processed) if len(processed) == len(steps) else None,
        turns=sum(step.turns for step in steps),
        spans=tuple(shifted((step.spans, len(step.loss_mask)) for step in steps)),
        sampling=tuple(shifted((step.sampling, len(step.loss_mask)) for step in steps)),
        steps=tuple(
            RunStep(len(step.tokens), step.prompt_tokens, step.reward, step.step_reward, step.state, step.role)
            for step in steps
        ),
    )


class SilentRoles:
    """Roles declared by a workflow, as long as no rollout has had a sequence of theirs."""

    def __init__(self, roles: Iterable[str]) -> None:
        """Begins with all declared roles, before the first rollout."""
        self._silent = set(roles)
        self._rollouts = 0

    def count(self, spoken: Iterable[str]) -> tuple[str, ...]:
        """Counts a rollout with sequences of the roles `spoken`.

        Returns the roles silent in all of the first `SILENT_ROLLOUTS` rollouts, once: at the last of these rollouts.
        """
        self._rollouts += 1
        self._silent.difference_update(spoken)
        return tuple(sorted(self._silent)) if self._rollouts == SILENT_ROLLOUTS else ()


class WorkflowRunner:
    """Runs the tasks of one taskset; opens each workflow and reward named by rows once."""

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
        sources: Mapping[str, str] | None = None,
        confined: bool = False,
        evaluates: bool = False,
        on_silent_role: Callable[[str, str], None] | None = None,
    ) -> None:
        """Raises ConfigError if the taskset's own workflow or reward cannot be opened.

        `endpoint` serves the model to workflows that run other programs; `auxiliary` returns the auxiliary models for
        an attempt at a rollout; processes of rewards have the environment `reward_environ`. `sources` are the texts of
        Python files by name, run in a sandbox if `confined`; `evaluates` is for workflows reading whether their
        answers are trained. `on_silent_role` is called with a workflow and a declared role that no rollout has used.
        """
        self._on_silent_role = on_silent_role
        self._silent_roles: dict[str, SilentRoles] = {}
        """Unused roles of each workflow with declared roles, by the workflow's name."""
        self._reward_environ = reward_environ
        self._sources = sources or {}
        self._confined = confined
        self._evaluates = evaluates
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
        """Makes one attempt at one rollout; equal ids and weights give equal tokens on a deterministic engine.

        Sampling seeds derive from `seed`, or from the rollout's id if None; `sampling` replaces the taskset's. Runs as
        long as the workflow: the caller bounds the time by cancelling. Raises RolloutError only.
        """
        auxiliary = self._auxiliary(rollout, rollout if seed is None else seed)
        model = Model(
            self._engine,
            self._tokenizer,
            spec=self._model,
            sampling=sampling or self._taskset.sampling,
            rollout=rollout,
            seed=seed,
            endpoint=self._endpoint,
            auxiliary_models=auxiliary.models,
        )
        attempt = asyncio.current_task()
        confined: OwnRollout | None = None
        try:
            workflow, scorer = self._open(task.workflow, task.reward)
            with rollout_of(task) as confined:
                returned = await workflow.run(task, model, scorer.beside(auxiliary.models))
            steps = list(returned) if isinstance(returned, Sequence) else [returned]
            for step in steps:
                if not isinstance(step, RolloutResult):
                    raise RolloutError(f"the workflow returned a {type(step).__name__}, not a RolloutResult")
                step.check(self._model.max_model_len)
                # A rollout of a single agent pays for this comparison alone.
                if step.role:
                    check_role(step.role, workflow)
            if not steps:
                raise RolloutError(
                    "the workflow returned no step of a rollout", fix="return at least one RolloutResult"
                )
            self._report_silent_roles(task.workflow, steps)
        except RolloutError as error:
            error.where = error.where or task.where
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and attempt is not None and attempt.cancelling():
                raise  # the caller gave up the rollout
            if isinstance(error, GeneratorExit) and not _is_running(attempt):
                raise  # the coroutine is being closed from outside
            if confined is not None and confined.exit is not None:
                raise confined.exit from error
            # An exit in the workflow's code would otherwise end the explorer with every other rollout; a forged
            # cancellation would be waited for.
            raise named(error, task) from error
        step = joined(steps)
        return msgspec.structs.replace(step, auxiliary=auxiliary.turns) if auxiliary.turns else step

    def _report_silent_roles(self, workflow: str, steps: Sequence[RolloutResult]) -> None:
        """Reports declared roles that never speak: the algorithm has no sequence of theirs to compare."""
        silent = self._silent_roles.get(workflow)
        if silent is not None and self._on_silent_role is not None:
            for role in silent.count(step.role for step in steps):
                self._on_silent_role(workflow, role)

    def check_roles(self, named: Sequence[str]) -> None:
        """Raises ConfigError for a role named by the algorithm and not declared by the taskset's workflow."""
        if named:
            check_named(named, self._workflows[self._taskset.workflow], self._taskset.workflow)

    def asks_once(self, task: Task) -> bool:
        """True if the task's rollouts can be made `together`.

        Requires a built-in workflow with a single request, a reward without waits, and an engine for groups of
        requests.
        """
        if self._groups is None or not WORKFLOWS.builtin(task.workflow):
            return False
        try:
            workflow, scorer = self._open(task.workflow, task.reward)
        except RftdError:
            return False  # `run` raises the reason
        # Cached by name: a check against a runtime protocol costs more than the rest of a rollout's accounting.
        single = self._single.get(task.workflow)
        if single is None:
            single = self._single[task.workflow] = isinstance(workflow, SingleTurn)
        return single and scorer.quick

    def together(self, rollouts: Sequence[TaskRollout]) -> BatchedRollouts:
        """Returns an attempt at rollouts of single-turn tasks, as one request to the engine."""
        assert self._groups is not None, "asks_once() says no"
        return BatchedRollouts(
            rollouts,
            self._open_single_turn,
            engine=self._groups,
            tokenizer=self._tokenizer,
            spec=self._model,
            sampling=self._taskset.sampling,
        )

    def _open_single_turn(self, task: Task) -> tuple[SingleTurn, Scorer]:
        """Opens a single-turn workflow and its reward."""
        workflow, scorer = self._open(task.workflow, task.reward)
        return cast(SingleTurn, workflow), scorer

    def _open(self, name: str, reward: str | None) -> tuple[Workflow, Scorer]:
        """Returns the workflow and reward; the experiment's arguments apply only where the experiment, not a row, names
        them.
        """
        taskset = self._taskset
        # Opened once for all rollouts: a reward may load a model, and workflows hold no state of a rollout.
        if name not in self._workflows:
            self._workflows[name] = self._open_workflow(name)
            if roles := roles_of(self._workflows[name]):
                self._silent_roles[name] = SilentRoles(roles)
        workflow = self._workflows[name]
        reward_name = reward or _own_reward(workflow, name, taskset)
        if reward_name not in self._scorers:
            of_taskset = reward_name == taskset.reward or (taskset.reward is None and name == taskset.workflow)
            # Only the experiment names a source: a row that does finds no registered reward of this name.
            sources = self._sources if reward_name == taskset.reward else {}
            self._scorers[reward_name] = open_scorer(
                reward_name,
                taskset.reward_args if of_taskset else None,
                environ=self._reward_environ,
                sources=sources,
                confined=self._confined,
            )
        return workflow, self._scorers[reward_name]

    def _open_workflow(self, name: str) -> Workflow:
        """Opens a workflow by name: registered, by class path, or from a submitted source."""
        if name != self._taskset.workflow:
            return WORKFLOWS.open(name)
        arguments = self._taskset.workflow_args
        path = class_path(name)
        if path is not None and name not in WORKFLOWS.names():
            target = load_class_path(path)
            if not isinstance(target, type):
                raise ConfigError(f"workflow {name!r} is a {type(target).__name__}", fix="name a class")
            of_path = SourceName(path.module, path.name)
            return open_workflow_class(of_path, target, arguments, self._taskset, evaluates=self._evaluates)
        source = source_name(name)
        agent = agent_source(name, arguments)
        if self._confined and (source or agent):
            # A workflow draws tokens in the explorer's process: no sandbox can hold it.
            raise ConfigError(
                f"{str(source or agent)!r} is a source of a submitter other than the owner, and only rewards run in a "
                "sandbox",
                field="default_workflow_type" if agent is None else "workflow_args.agent",
                fix="use agent_command_workflow, or ask the daemon's owner to install it",
            )
        if agent is not None:
            program = cast(AgentProgramWorkflow, WORKFLOWS.open(name, arguments))
            program.open_source(agent, self._sources)
            return program
        if source is None or source.file not in self._sources:
            return WORKFLOWS.open(name, arguments)
        text = self._sources[source.file]
        return open_workflow_source(source, text, arguments, self._taskset, evaluates=self._evaluates)


def roles_of(workflow: object) -> tuple[str, ...]:
    """Returns the roles declared in a workflow's class attribute `roles`; empty for a workflow of a single agent."""
    roles: Sequence[str] = getattr(workflow, "roles", ())
    return tuple(roles)


def check_role(role: str, workflow: object) -> None:
    """Raises RolloutError for the role of a sequence, if the workflow does not declare the role."""
    declared = roles_of(workflow)
    if role not in declared:
        raise RolloutError(
            f"the workflow returned a sequence of role {role!r}, and declares {', '.join(declared) or 'no role'}",
            field="roles",
            fix="name each role in the class attribute `roles` of the workflow",
        )


def check_named(named: Sequence[str], workflow: object, name: str) -> None:
    """Raises ConfigError for a role named by the algorithm, if the workflow called `name` does not declare the role.

    Such a role would never speak, and its peers would be compared otherwise than configured.
    """
    declared = roles_of(workflow)
    for role in named:
        if role not in declared:
            near = difflib.get_close_matches(role, declared, 1)
            raise ConfigError(
                f"role {role!r} is unknown: workflow {name!r} declares {', '.join(declared) or 'no role'}",
                field="advantage_fn_args.rollout_roles",
                fix=f"did you mean {near[0]!r}?" if near else "name a role of the workflow's class attribute `roles`",
            )


def check_names(taskset: TasksetSpec) -> None:
    """Raises ConfigError if the taskset names an unregistered workflow or reward, or lacks a reward.

    Imports the workflow only where no reward is named.
    """
    # Sources are checked when the file is resolved, without running them.
    of_source = source_name(taskset.workflow) is not None
    path = None if taskset.workflow in WORKFLOWS.names() else class_path(taskset.workflow)
    if path is not None:
        check_class_path(path)
        of_source = True
    elif not of_source:
        check_workflow(taskset.workflow)
    if taskset.reward is not None:
        if source_name(taskset.reward) is None:
            REWARDS.check(taskset.reward)
    elif not of_source:
        _own_reward(WORKFLOWS.load(taskset.workflow), taskset.workflow, taskset)


def _own_reward(workflow: object, name: str, taskset: TasksetSpec) -> str:
    """Returns the name of a workflow's default reward. Raises ConfigError without one."""
    reward_name = getattr(workflow, "default_reward", None)
    if reward_name is None:
        raise ConfigError(
            f"workflow {name!r} has no default reward, and taskset {taskset.name!r} names none",
            field="default_reward_fn_type",
            fix=f"name one of: {', '.join(REWARDS.names())}",
        )
    return str(reward_name)


def _is_running(task: asyncio.Task[object] | None) -> bool:
    """True if called from within a step of the task; a coroutine being closed may be in no loop at all."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False
