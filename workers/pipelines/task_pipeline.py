"""`made_rows`: the rows of a task pipeline's inputs after every operator, ordered, with the lineage of each row."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rftd.ops.errors import DataError, PipelineError, RftdError, explain
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.spec.task_pipeline import JuicerSpec, OperatorRun, RowsRead, TaskPipelineSpec, TasksMade
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.pipelines.juicer_operator import juiced
from rftd.workers.pipelines.priority import WEIGHTS, priorities
from rftd.workers.pipelines.registry import TASK_OPERATORS
from rftd.workers.pipelines.task_operator import PipelineRow, TaskOperator

LINEAGE: Final = "task_pipeline"
"""Column of the result with a row's lineage: number of the input, of the row, figures and priority."""
MOST_ROWS: Final = 2_000_000
"""Maximum number of input rows: all are in memory at once."""
_PART_ROWS: Final = 5_000
"""Number of rows in one part of an operator's work, for operators that take rows separately."""


class MadeRows(NamedTuple):
    """The rows of a result in order, and the record of their making."""

    rows: list[dict[str, Any]]
    made: TasksMade


class TaskPipelineJob(msgspec.Struct, frozen=True, kw_only=True):
    """A task pipeline to be run, and the form of the inputs."""

    pipeline: TaskPipelineSpec
    inputs: TasksetSpec
    """Subset, split and limit of rows of every input."""
    settings: str
    """Digest of the pipeline, recorded with the result."""


def made_rows(job: TaskPipelineJob) -> MadeRows:
    """Runs the operators on all rows of the inputs. Raises ConfigError, DataError, PipelineError. Blocks."""
    pipeline = job.pipeline
    inputs, rows = _read(job)
    runs: list[OperatorRun] = []
    for remote, neighbours in groupby(pipeline.operators, key=_is_elsewhere):
        specs = list(neighbours)
        if remote:
            if pipeline.juicer is None:
                TASK_OPERATORS.check(specs[0].name)
            rows, of_service = juiced(
                pipeline.juicer or JuicerSpec(), specs, rows, pipeline.text_key, pipeline.num_process
            )
            runs.append(of_service)
            continue
        for spec in specs:
            rows, run = _run(spec, rows, pipeline.num_process)
            runs.append(run)
    if not rows:
        raise DataError("the task pipeline leaves no row", fix="widen the bounds of its filters")
    weights = pipeline.priority_weights or WEIGHTS
    ranks = priorities([row.stats for row in rows], weights)
    order = list(range(len(rows)))
    if ranks is not None:  # equal priorities keep the order of the inputs
        order.sort(key=lambda index: -ranks[index])
    if pipeline.top_k >= 0:
        order = order[: pipeline.top_k]
    written = [_written(rows[index], None if ranks is None else ranks[index]) for index in order]
    return MadeRows(written, TasksMade(settings=job.settings, inputs=inputs, operators=tuple(runs), rows=len(written)))


def _read(job: TaskPipelineJob) -> tuple[tuple[RowsRead, ...], list[PipelineRow]]:
    inputs: list[RowsRead] = []
    rows: list[PipelineRow] = []
    for number, path in enumerate(job.pipeline.inputs):
        with Taskset.open(msgspec.structs.replace(job.inputs, path=path, more_paths=())) as taskset:
            if len(rows) + len(taskset) > MOST_ROWS:
                raise DataError(f"the inputs have more than {MOST_ROWS} rows", where=path, fix="set limit_rows")
            inputs.append(RowsRead(digest=taskset.digest, rows=len(taskset)))
            for index, columns in enumerate(taskset.rows()):
                text = columns.get(job.pipeline.text_key)
                if text is None:
                    with taskset.placed(index):
                        fix = "name a column in data_processor.task_pipeline.target_fields"
                        raise DataError(f"the row has no column {job.pipeline.text_key!r}", fix=fix)
                plain = text if isinstance(text, str) else msgspec.json.encode(text).decode()
                rows.append(PipelineRow(input=number, row=index, columns=columns, text=plain))
    return tuple(inputs), rows


def _is_elsewhere(spec: OperatorSpec) -> bool:
    """True for an operator of the service."""
    return spec.name not in TASK_OPERATORS.names()


def _run(spec: OperatorSpec, rows: Sequence[PipelineRow], processes: int) -> tuple[list[PipelineRow], OperatorRun]:
    """Returns the rows left by one operator, checked, and the record of its run."""
    before = {(row.input, row.row) for row in rows}
    try:
        remaining, figures = _processed(spec, rows, processes)
    except RftdError:
        raise
    except (Exception, SystemExit) as error:  # a third party's operator may raise anything
        raise PipelineError(f"operator {spec.name!r} raised {explain(error)}") from error
    identities = [(row.input, row.row) for row in remaining]
    if len(set(identities)) != len(identities) or not before.issuperset(identities):
        raise PipelineError(f"operator {spec.name!r} returned rows twice, or rows of no input")
    return remaining, OperatorRun(name=spec.name, digest=_digest(spec), rows=len(remaining), figures=figures)


def _processed(
    spec: OperatorSpec, rows: Sequence[PipelineRow], processes: int
) -> tuple[list[PipelineRow], dict[str, float]]:
    """Returns the remaining rows and the figures of one operator; figures of several parts are added up."""
    operator = TASK_OPERATORS.open(spec.name, spec.args)
    if processes == 1 or len(rows) <= _PART_ROWS or not getattr(operator, "separate_rows", False):
        return _checked(operator.process(rows))
    parts = [rows[first : first + _PART_ROWS] for first in range(0, len(rows), _PART_ROWS)]
    remaining: list[PipelineRow] = []
    sums: dict[str, float] = {}
    # Spawned: a fork would copy the locks of threads.
    with ProcessPoolExecutor(min(processes, len(parts)), mp_context=get_context("spawn")) as pool:
        for answer, figures in pool.map(_part, [spec] * len(parts), parts):
            remaining += answer
            sums = {name: sums.get(name, 0.0) + figures.get(name, 0.0) for name in {**sums, **figures}}
    return remaining, sums


def _part(spec: OperatorSpec, rows: Sequence[PipelineRow]) -> tuple[list[PipelineRow], dict[str, float]]:
    operator: TaskOperator = TASK_OPERATORS.open(spec.name, spec.args)
    return _checked(operator.process(rows))


def _checked(answer: tuple[Sequence[PipelineRow], Mapping[str, float]]) -> tuple[list[PipelineRow], dict[str, float]]:
    rows, figures = answer
    for row in rows:
        wrong = [name for name, figure in row.stats.items() if not math.isfinite(figure)]
        if wrong:
            raise PipelineError(f"the figure {wrong[0]!r} of row {row.row} is {row.stats[wrong[0]]}")
    return list(rows), {str(name): float(figure) for name, figure in figures.items() if math.isfinite(figure)}


def _digest(spec: OperatorSpec) -> str:
    """Returns the sha256 (hex) of an operator: name, arguments, package and source file."""
    factory = TASK_OPERATORS.load(spec.name)
    try:
        source = Path(inspect.getfile(factory)).read_bytes()
    except (OSError, TypeError):
        source = b""
    parts = [spec.name, spec.args, TASK_OPERATORS.origin(spec.name), hashlib.sha256(source).hexdigest()]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def _written(row: PipelineRow, priority: float | None) -> dict[str, Any]:
    lineage: dict[str, Any] = {"input": row.input, "row": row.row}
    if row.stats:
        lineage["stats"] = dict(row.stats)
    if priority is not None:
        lineage["priority"] = priority
    if LINEAGE in row.columns:
        lineage["before"] = row.columns[LINEAGE]
    return {**row.columns, LINEAGE: lineage}
