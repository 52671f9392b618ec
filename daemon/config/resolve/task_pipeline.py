"""`resolve_task_pipeline`: the operators of `data_processor.task_pipeline`, checked, and the rows for them."""

from __future__ import annotations

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.resolve.bench import BENCH
from rftd.daemon.config.resolve.juicer import has_juicer, juicer_of
from rftd.daemon.config.schema.experiment import Experiment, TaskPipeline
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.spec.task_pipeline import TaskPipelineSpec, TasksMade, settings_digest
from rftd.workers.pipelines.registry import TASK_OPERATORS

_TASK_PIPELINE_PATH: FieldPath = ("data_processor", "task_pipeline")
"""Path of the task pipeline's section."""
_SERVE = "serve"
"""Mode in which clients send the tasks, so a task pipeline has no rows to process."""


def pending_inputs(experiment: Experiment) -> tuple[str, ...]:
    """Returns the rows for a pipeline not run yet, in place of the taskset's path; empty without a pipeline."""
    section = experiment.data_processor.task_pipeline
    if section is None or not section.operators or section.made:
        return ()
    return tuple(section.inputs)


def resolve_task_pipeline(stage: StageSpec, experiment: Experiment, notes: Notes, *, inherited: bool) -> StageSpec:
    """Returns the stage with its task pipeline, with issues for unknown operators, arguments and settings.

    `inherited` is True for one of several stages, which may have the pipeline from the whole file.
    """
    section = experiment.data_processor.task_pipeline
    if section is None or section == TaskPipeline():
        return stage
    rows = stage.taskset if stage.kind != "train" else stage.dataset
    if rows is None or rows.queue or experiment.mode in (BENCH, _SERVE):
        if not inherited and (rows is not None or not notes.issues):
            notes.warn(f"{show(_TASK_PIPELINE_PATH)} has no effect: the experiment reads no rows of tasks from files")
        return stage
    if not section.operators and section.config_path is not None:  # refused already
        return stage
    if not section.operators:
        problem = "has no operators, but other fields are set"
        notes.wrong(_TASK_PIPELINE_PATH, problem, "name an operator, or leave the pipeline out", Contradiction)
        return stage
    _check_operators(section, experiment, notes)
    elsewhere = any(operator.name not in TASK_OPERATORS.names() for operator in section.operators)
    inputs = tuple(section.inputs) or rows.paths
    pipeline = TaskPipelineSpec(
        inputs=inputs,
        operators=tuple(OperatorSpec(name=operator.name, args=operator.args) for operator in section.operators),
        num_process=section.num_process,
        target_fields=tuple(section.target_fields) or (rows.format.prompt_key,),
        priority_weights={str(name): weight for name, weight in section.priority_weights.items()},
        top_k=section.top_k,
        output=_output(section, stage, experiment),
        juicer=juicer_of(experiment, notes) if elsewhere and has_juicer(experiment) else None,
        made=_made(section, notes),
    )
    if pipeline.made is not None and pipeline.made.settings != settings_digest(pipeline):
        problem = "was written for a pipeline with other settings"
        fix = "submit the file without made, as a new experiment, or keep the settings"
        notes.wrong((*_TASK_PIPELINE_PATH, "made"), problem, fix, Contradiction)
    return msgspec.structs.replace(stage, task_pipeline=pipeline)


def _check_operators(section: TaskPipeline, experiment: Experiment, notes: Notes) -> None:
    """Reports unknown operators and arguments; with a service, unknown ones are Data-Juicer's, which checks them."""
    for index, operator in enumerate(section.operators):
        try:
            TASK_OPERATORS.check(operator.name)
        except ConfigError as error:
            if not has_juicer(experiment):
                fix = f"{error.fix}; for operators of Data-Juicer set service.data_juicer"
                notes.wrong((*_TASK_PIPELINE_PATH, "operators", index, "name"), error.what, fix, Unsupported)
        else:
            check_declared(
                TASK_OPERATORS, operator.name, operator.args, (*_TASK_PIPELINE_PATH, "operators", index, "args"), notes
            )


def _output(section: TaskPipeline, stage: StageSpec, experiment: Experiment) -> str:
    """Returns the file for a copy of the result: the written one, else the taskset's path beside separate inputs."""
    if section.output is not None:
        return section.output.path
    if section.made or not section.inputs:
        return ""
    if stage.kind == "train":
        path = experiment.buffer.trainer_input.experience_buffer.path
    else:
        inputs = experiment.buffer.explorer_input
        first = inputs.tasksets[0] if inputs.tasksets else inputs.taskset
        path = first.path if first is not None else None
    return path if isinstance(path, str) and path not in section.inputs else ""


def _made(section: TaskPipeline, notes: Notes) -> TasksMade | None:
    if not section.made:
        return None
    try:
        return converted(section.made, TasksMade)
    except msgspec.ValidationError as error:
        notes.wrong((*_TASK_PIPELINE_PATH, "made"), f"is not a record of the daemon: {error}", "leave it out")
        return None
