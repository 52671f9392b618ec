"""The number of steps made by the rows of a stage, and warnings about surplus and missing rows."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.resolve.algorithm import no_warmup
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of


def steps_of(stage: StageSpec, tasks: int, dataset: TasksetSpec | None) -> int:
    """Returns the number of steps of a stage with this many `tasks` and with the rows of `dataset`.

    An auxiliary buffer with too few rows ends the stage earlier. Raises ConfigError for a stage without any step.
    """
    requested = _requested_steps(stage, tasks, dataset)
    if stage.kind == "explore":
        return stage.total_steps
    if not stage.total_steps:
        rows = tasks if stage.taskset else dataset.rows if dataset else 0
        _check_steps(stage, requested, rows, stage.batch_size if stage.taskset else stage.train_batch_size)
    if dataset is None or not dataset.max_epochs:
        return requested
    steps = dataset.max_epochs * dataset.rows // stage.expert_rows
    if not steps:
        raise ConfigError(
            f"{dataset.max_epochs} epochs of {dataset.rows} rows are fewer than the {stage.expert_rows} of one step",
            field=show((*auxiliary_buffer(stage), "total_epochs")),
            fix="leave it out, or give more rows",
        )
    return min(requested, steps)


def auxiliary_buffer(stage: StageSpec) -> FieldPath:
    """Returns the path of the field naming the rows trained together with experiences."""
    name = stage.algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
    return ("buffer", "trainer_input", "auxiliary_buffers", name)


def row_warnings(before: StageSpec, stage: StageSpec) -> Iterator[str]:
    """Yields warnings about untrained rows, steps without rows and a warm-up without steps.

    `before` is the stage before its rows were counted.
    """
    cut = list(_missing_rows_warning(before, stage))
    yield from cut or _untrained_rows_warning(stage)
    if warning := no_warmup(before.algorithm.optimizer.lr_warmup_steps_ratio, stage.total_steps):
        yield f"stage {stage.name!r}: {warning}"


def _requested_steps(stage: StageSpec, tasks: int, dataset: TasksetSpec | None) -> int:
    """Returns the steps requested by the file: a number, or epochs of the tasks or rows."""
    if stage.total_steps or stage.kind == "explore":
        return stage.total_steps
    if stage.taskset is not None:
        return stage.total_epochs * tasks // stage.batch_size
    return stage.total_epochs * dataset.rows // stage.train_batch_size if dataset is not None else 0


def _check_steps(stage: StageSpec, steps: int, rows: int, size: int) -> None:
    """Raises ConfigError for a stage whose rows do not fill one batch of `size`."""
    if steps == 0:
        raise ConfigError(
            f"stage {stage.name!r}: {stage.total_epochs} epochs of {rows} rows make no step of {size}",
            field="buffer.batch_size" if stage.taskset else "buffer.train_batch_size",
            fix="use a smaller batch, more epochs, or buffer.total_steps",
        )


def _missing_rows_warning(before: StageSpec, stage: StageSpec) -> Iterator[str]:
    """Yields the warning about steps without rows in an auxiliary buffer; nothing if there are enough."""
    requested = _requested_steps(before, sum(taskset.rows for taskset in tasksets_of(stage)), stage.dataset)
    if stage.dataset is not None and stage.dataset.max_epochs and stage.total_steps < requested:
        yield (
            f"stage {stage.name!r} ends after {stage.total_steps} of {requested} steps: then the {stage.dataset.rows} "
            f"rows of {show(auxiliary_buffer(stage))} were gone over {stage.dataset.max_epochs} times (total_epochs)"
        )


def _untrained_rows_warning(stage: StageSpec) -> Iterator[str]:
    """Yields the warning about rows of the last epoch too few for a batch; nothing if every row is trained."""
    if not stage.total_epochs or not stage.total_steps:
        return
    explored = stage.taskset is not None
    size = stage.batch_size if explored else stage.train_batch_size
    sources = tasksets_of(stage) if explored else [stage.dataset] if stage.dataset else []
    rows = stage.total_epochs * sum(source.rows for source in sources)
    untrained_rows = rows - stage.total_steps * size
    if untrained_rows > 0:
        epochs = f"{stage.total_epochs} epoch{'s' if stage.total_epochs > 1 else ''}"
        field = "buffer.batch_size" if explored else "buffer.train_batch_size"
        yield (
            f"stage {stage.name!r}: the last {untrained_rows} of {rows} rows of {epochs} are not trained, for they "
            f"fill no batch of {size} ({field})"
        )
