"""Workflows and agents from Python source text submitted with an experiment; `source` names, checks and loads it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.workflows.marks import check_mark
from rftd.workers.workflows.source import SourceName, load_class_text, open_instance, passed_parameters
from rftd.workers.workflows.trinity import names as trinity
from rftd.workers.workflows.workflow import Workflow

_AGENT: Final = ("task", "base_url", "api_key", "auxiliary_models")
"""Parameters passed to an agent program; the last only where its signature has it."""
_RUN: Final = ("task", "model", "reward")
"""Parameters passed to every workflow."""


def open_workflow_source(
    name: SourceName,
    text: str,
    arguments: Mapping[str, Any],
    taskset: TasksetSpec | None = None,
    *,
    evaluates: bool = False,
) -> Workflow:
    """Returns the workflow in a source: a coroutine function of `task`, `model` and `reward` by name, a class with
    `run`, or a class of Trinity-RFT for the tasks of `taskset`.

    `arguments` are further parameters. Raises ConfigError if the source fails, or the arguments do not fit.
    """
    target = load_class_text("workflow", name, text)
    check_mark("workflow", target)
    if inspect.isclass(target):
        return open_workflow_class(name, target, arguments, taskset, evaluates=evaluates)
    if not inspect.iscoroutinefunction(target):
        problem = f"workflow {str(name)!r} is no coroutine function"
        raise ConfigError(problem, where=name.file, fix=f"define it as: async def {name.name}({', '.join(_RUN)})")
    passed = passed_parameters("workflow", name, target, _RUN, arguments)

    async def run(task: Any, model: Any, reward: Any) -> Any:
        run_arguments = {"task": task, "model": model, "reward": reward}
        return await target(**{parameter: run_arguments[parameter] for parameter in passed}, **arguments)

    return cast("Workflow", SimpleNamespace(run=run, default_reward=None))


def open_workflow_class(
    name: SourceName,
    target: type,
    arguments: Mapping[str, Any],
    taskset: TasksetSpec | None = None,
    *,
    evaluates: bool = False,
) -> Workflow:
    """Returns a class as a workflow: a class of Trinity-RFT for the tasks of `taskset`, or a class with `run`.

    Raises ConfigError if the class does not take the arguments.
    """
    if taskset is not None and any(trinity.is_trinity_class(base) for base in target.__mro__):
        from rftd.workers.workflows.trinity.adapter import ClassWorkflow

        return ClassWorkflow(target, taskset, evaluates=evaluates)
    return cast("Workflow", open_instance("workflow", name, target, arguments, "run"))


def open_agent_source(name: SourceName, text: str) -> Callable[..., Any]:
    """Returns the agent program in a source, whose parameters are among `task`, `base_url`, `api_key` and
    `auxiliary_models`.

    Raises ConfigError if the source fails, or the program requires other parameters.
    """
    target = load_class_text("agent", name, text)
    passed = passed_parameters("agent", name, target, _AGENT, {})

    def solve(task: Any, **addresses: Any) -> Any:
        offered = {"task": task, **addresses}
        return target(**{parameter: offered[parameter] for parameter in passed if parameter in offered})

    async def solve_async(task: Any, **addresses: Any) -> Any:
        return await solve(task, **addresses)

    chosen: Any = solve_async if inspect.iscoroutinefunction(target) else solve
    chosen.__signature__ = inspect.signature(target)
    return cast("Callable[..., Any]", chosen)
