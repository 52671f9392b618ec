"""An algorithm for a single taskset: the advantages of the taskset's groups, beside the stage's policy loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.algorithm import made_part
from rftd.daemon.config.schema.buffer import Taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, TasksetSpec
from rftd.workers.learning.algorithms import registry
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition

_INPUT: FieldPath = ("buffer", "explorer_input")
"""Section of the tasks."""
_WHOLE_BATCH = ("token_advantages", "relative")
"""Methods of advantage functions of a complete batch, with groups of other tasksets among its own."""


def with_algorithms(
    specs: Sequence[TasksetSpec], experiment: Experiment, stage: AlgorithmSpec, notes: Notes
) -> tuple[TasksetSpec, ...]:
    """Returns the tasksets with the advantage functions of their algorithms.

    Refuses algorithms that cannot act on single groups: with another policy loss, with a critic, a teacher or rows of
    an expert, or with advantages of complete batches. `stage` is the algorithm of the stage.
    """
    inputs = experiment.buffer.explorer_input
    several = bool(inputs.tasksets)
    tasksets = inputs.tasksets or [inputs.taskset or Taskset()]
    for index, taskset in enumerate(inputs.eval_tasksets):
        _warn_of_held_out(taskset, (*_INPUT, "eval_tasksets", index), notes)
    if len(specs) != len(tasksets):
        return tuple(specs)  # a taskset with an error is missing, and the file is refused
    resolved = []
    for index, (spec, taskset) in enumerate(zip(specs, tasksets, strict=True)):
        path: FieldPath = (*_INPUT, "tasksets", index) if several else (*_INPUT, "taskset")
        if taskset.algorithm_type is None:
            if taskset.advantage_fn_args:
                notes.warn(f"{show((*path, 'advantage_fn_args'))} has no effect: only used with algorithm_type")
            resolved.append(spec)
        else:
            resolved.append(_with_algorithm(spec, taskset.algorithm_type, taskset, path, stage, notes))
    if any(spec.algorithm for spec in resolved):
        _check_stage(stage, notes)
    return tuple(resolved)


def _with_algorithm(
    spec: TasksetSpec, kind: str, taskset: Taskset, path: FieldPath, stage: AlgorithmSpec, notes: Notes
) -> TasksetSpec:
    """Returns the taskset with the advantage function of the algorithm `kind`; unchanged, with an issue, if refused."""
    field = (*path, "algorithm_type")
    try:
        definition = registry.lookup(kind)
    except ConfigError as error:
        notes.wrong(field, error.what, error.fix, WrongValue)
        return spec
    if problem := _hindrance(definition, stage):
        notes.wrong(
            field, problem, "choose an algorithm with the same policy loss, or use a stage of its own", Contradiction
        )
        return spec
    args: dict[str, Any] = {**definition.advantage_args, **(taskset.advantage_fn_args or {})}
    issues = len(notes.issues)
    function = made_part("advantage", ADVANTAGES, definition.advantage, args, notes, path=path)
    if len(notes.issues) > issues:
        return spec
    if problem := _function_hindrance(definition.advantage, function):
        notes.wrong(field, problem, "use it in `algorithm`, for all tasksets of a stage", Unsupported)
        return spec
    return msgspec.structs.replace(spec, algorithm=kind, advantage=definition.advantage, advantage_args=args)


def _hindrance(definition: AlgorithmDefinition, stage: AlgorithmSpec) -> str:
    """Returns the reason why an algorithm cannot act beside the algorithm of the stage; empty if it can."""
    needs = definition.needs
    if not needs.rollouts:
        return f"is {definition.name}, which trains on rows, and a taskset has rollouts"
    needed = {"a critic": needs.critic, "a teacher": needs.teacher, "an expert's rows": needs.expert_data}
    for noun, needs_it in needed.items():
        if needs_it:
            return f"is {definition.name}, which needs {noun}: a stage has one for all of its tasksets"
    if definition.policy_loss != stage.policy_loss:
        return (
            f"is {definition.name} with the policy loss {definition.policy_loss}, and the stage trains all of its "
            f"tasksets with {stage.policy_loss}"
        )
    if needs.groups and stage.repeat_times < 2:
        return f"is {definition.name}, which compares the answers to one task, and algorithm.repeat_times is 1"
    return ""


def _function_hindrance(name: str, function: Any) -> str:
    """Returns the reason why an advantage function cannot act on single groups of a batch; empty if it can.

    `function` is None for a third party's, never imported here.
    """
    if function is None:
        return f"computes advantages by {name}, a plug-in: a taskset takes one of rftd's functions"
    if any(hasattr(function, method) for method in _WHOLE_BATCH):
        return f"computes advantages by {name}, from the complete batch and not from groups"
    if function.greedy_rollouts:
        return f"computes advantages by {name}, with a greedy rollout in each group"
    if getattr(function, "std_threshold", None) is not None:
        return f"computes advantages by {name} with a std_threshold, which leaves out groups of all tasksets"
    return ""


def _check_stage(stage: AlgorithmSpec, notes: Notes) -> None:
    """Refuses tasksets' algorithms beside a stage's algorithm that acts on complete batches."""
    function = ADVANTAGES.open(stage.advantage, stage.advantage_args) if ADVANTAGES.builtin(stage.advantage) else None
    problem = _function_hindrance(stage.advantage, function)
    if not problem and stage.kl_penalty_place == "before" and stage.kl_penalty != "none":
        problem = "subtracts the KL penalty before advantages (kl_penalty_place), which has one function for all groups"
    if problem:
        fix = "leave algorithm_type out of the tasksets, or choose another algorithm for the stage"
        notes.wrong(("algorithm", "advantage_fn"), f"beside the algorithm of a taskset: {problem}", fix, Contradiction)


def _warn_of_held_out(taskset: Taskset, path: FieldPath, notes: Notes) -> None:
    """Warns of the algorithm of a held-out taskset."""
    for name in ("algorithm_type", "advantage_fn_args"):
        if getattr(taskset, name) is not None:
            notes.warn(f"{show((*path, name))} has no effect: held-out tasks are not trained")
