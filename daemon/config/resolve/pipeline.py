"""`resolve_pipeline`: the operators of `data_processor.experience_pipeline`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.resolve.bench import BENCH
from rftd.daemon.config.resolve.juicer import DATA_JUICER, juicer_of
from rftd.daemon.config.schema.experiment import DataOperator, Experiment
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.pipelines.registry import OPERATORS
from rftd.workers.workflows.registry import group_operator

OPERATORS_AT: Final[FieldPath] = ("data_processor", "experience_pipeline", "operators")
"""Path of the list of the experience pipeline's operators."""


SERVICE_CONFIG: Final = "service_config"
"""Argument with the section `service.data_juicer`, added to the operator `data_juicer`."""


def resolve_pipeline(
    experiment: Experiment, tasksets: Sequence[TasksetSpec], notes: Notes, *, explores: bool, inherited: bool
) -> tuple[OperatorSpec, ...]:
    """Returns the stage's operators in order, with issues for unknown operators and arguments; none without rollouts.

    A workflow whose groups are judged together brings its operator, before those of the file. `inherited` is True for
    one of several stages, which may have the operators from the whole file.
    """
    section = experiment.data_processor.experience_pipeline
    operators = section.operators if section is not None else []
    judging = _judging(tasksets, experiment, [operator.name for operator in operators], notes)
    if not operators and not judging:
        return ()
    if not explores or experiment.mode == BENCH:
        if not inherited:
            notes.warn(f"{show(OPERATORS_AT)} has no effect: the experiment trains on rows, without rollouts")
        return ()
    if experiment.explorer.over_rollout.return_partial_tasks:
        problem = "is true, but groups with missing rollouts skip data_processor.experience_pipeline"
        at: FieldPath = ("explorer", "over_rollout", "return_partial_tasks")
        notes.wrong(at, problem, "set it to false, or leave out the operators", Contradiction)
    for index, operator in enumerate(operators):
        if SERVICE_CONFIG in operator.args:
            field = (*OPERATORS_AT, index, "args", SERVICE_CONFIG)
            notes.wrong(field, "is added by rftd", "write the section service.data_juicer")
        try:
            OPERATORS.check(operator.name)
        except ConfigError as error:
            notes.wrong((*OPERATORS_AT, index, "name"), error.what, error.fix, Unsupported)
        else:
            check_declared(OPERATORS, operator.name, operator.args, (*OPERATORS_AT, index, "args"), notes)
    return (*judging, *(_spec(operator, experiment, notes) for operator in operators))


def _spec(operator: DataOperator, experiment: Experiment, notes: Notes) -> OperatorSpec:
    if operator.name != DATA_JUICER:
        return OperatorSpec(name=operator.name, args=operator.args)
    service = msgspec.to_builtins(juicer_of(experiment, notes))
    return OperatorSpec(name=operator.name, args={**operator.args, SERVICE_CONFIG: service})


def _judging(
    tasksets: Sequence[TasksetSpec], experiment: Experiment, names: Sequence[str], notes: Notes
) -> tuple[OperatorSpec, ...]:
    """Returns the operator of the tasksets' workflow, unless the file names the operator itself."""
    operators = {group_operator(taskset.workflow) for taskset in tasksets}
    if not any(operators):
        return ()
    workflow = next(taskset.workflow for taskset in tasksets if group_operator(taskset.workflow))
    if not experiment.explorer.auxiliary_models:
        problem = f"is empty, and {workflow} needs a model to judge"
        notes.wrong(("explorer", "auxiliary_models"), problem, "add the judge", WrongValue)
    if len(operators) > 1:
        problem = f"have {workflow} and others, but a judge ranks the answers of all groups of a stage"
        fix = "give the others a stage or an experiment of their own"
        notes.wrong(("buffer", "explorer_input", "tasksets"), problem, fix, Contradiction)
    return tuple(OperatorSpec(name=name, args={}) for name in sorted(operators) if name and name not in names)
