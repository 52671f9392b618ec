"""`resolve_pipeline`: the operators of `data_processor.experience_pipeline`, checked."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.resolve.bench import BENCH
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.pipelines.registry import OPERATORS

OPERATORS_AT: Final[FieldPath] = ("data_processor", "experience_pipeline", "operators")


_DATA_JUICER: Final = "data_juicer"


def resolve_pipeline(
    experiment: Experiment, notes: Notes, *, explores: bool, inherited: bool
) -> tuple[OperatorSpec, ...]:
    """Returns the stage's operators in order, with issues for unknown operators and arguments; none without rollouts.

    `inherited` is True for one of several stages, which may have the operators from the whole file.
    """
    section = experiment.data_processor.experience_pipeline
    if section is None or not section.operators:
        return ()
    if not explores or experiment.mode == BENCH:
        if not inherited:
            notes.warn(f"{show(OPERATORS_AT)} has no effect: the experiment trains on rows, without rollouts")
        return ()
    if experiment.explorer.over_rollout.return_partial_tasks:
        problem = "is true, but groups with missing rollouts skip data_processor.experience_pipeline"
        at: FieldPath = ("explorer", "over_rollout", "return_partial_tasks")
        notes.wrong(at, problem, "set it to false, or leave out the operators", Contradiction)
    for index, operator in enumerate(section.operators):
        if operator.name == _DATA_JUICER:
            problem = "is data_juicer, but the service Data-Juicer is not supported yet"
            notes.wrong((*OPERATORS_AT, index, "name"), problem, "leave it out, and score rows before", Unsupported)
            continue
        try:
            OPERATORS.check(operator.name)
        except ConfigError as error:
            notes.wrong((*OPERATORS_AT, index, "name"), error.what, error.fix, Unsupported)
        else:
            check_declared(OPERATORS, operator.name, operator.args, (*OPERATORS_AT, index, "args"), notes)
    return tuple(OperatorSpec(name=operator.name, args=operator.args) for operator in section.operators)
