"""`TaskColumns`: columns of tasksets whose selectors draw rows, and checks of such selectors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from rftd.ops import limits
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.selectors.registry import draws, follows_rewards, make_selector
from rftd.workers.control.selectors.task_rows import no_columns
from rftd.workers.datasets.taskset import Taskset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TaskColumns:
    """The columns read by the selectors of the current stage, cached."""

    def __init__(self) -> None:
        """Starts without columns."""
        self._columns_read: list[tuple[TasksetSpec, NDArray[np.float64]]] = []
        """Tasksets of the current stage with their columns, rows by columns."""

    def of(self, spec: TasksetSpec) -> NDArray[np.float64] | None:
        """Returns the columns of a taskset, rows by columns, for its selector; None if not read yet."""
        return next((columns for read, columns in self._columns_read if read == spec), no_columns(spec))

    async def read(self, spec: ExperimentSpec, stage: int) -> None:
        """Reads the missing columns of a stage, and drops those of other stages.

        Raises DataError for a taskset missing or changed since its acceptance.
        """
        tasksets = tasksets_of(spec.stages[stage]) if 0 <= stage < len(spec.stages) else ()
        self._columns_read = [(read, columns) for read, columns in self._columns_read if read in tasksets]
        for taskset in tasksets:
            if draws(taskset.selector) and self.of(taskset) is None:
                self._columns_read.append((taskset, await asyncio.to_thread(_columns, taskset)))


def _columns(spec: TasksetSpec) -> NDArray[np.float64]:
    """Reads a taskset's columns. Raises DataError if its rows changed since the acceptance."""
    with Taskset.open(spec) as taskset:
        if taskset.digest != spec.digest:
            raise DataError(
                f"taskset {spec.name!r} has digest {taskset.digest}, the experiment was accepted with {spec.digest}",
                where=spec.path,
                fix="restore the file, or submit a new experiment",
            )
        return taskset.columns(spec.feature_keys)


def check_selector(spec: TasksetSpec, *, deterministic: bool) -> None:
    """Raises ConfigError for a selector that cannot be built, or whose draws depend on timing in a
    deterministic run.
    """
    if not draws(spec.selector):
        return
    try:
        make_selector(spec)
    except ConfigError as error:
        if error.field in spec.selector_args:
            error.field = f"data_selector.kwargs.{error.field}"
        raise
    if deterministic and follows_rewards(spec.selector):
        raise ConfigError(
            f"is {spec.selector}, whose draws depend on which rollouts end first, and the experiment is deterministic",
            field="data_selector.selector_type",
            fix="write sequential, shuffle, random or offline_easy2hard, or deterministic: false",
        )


def drawn(taskset: Taskset) -> TasksetSpec:
    """Returns the taskset's specification with the columns for its selector, after checking them in every row.

    Raises ConfigError for more rows than the daemon keeps columns for, DataError for a cell that is not a number.
    """
    spec = taskset.spec
    if not draws(spec.selector):
        return spec
    if len(taskset) > limits.SELECTOR_ROWS:
        raise ConfigError(
            f"is {spec.selector}, and the taskset has {len(taskset)} rows: selectors take up to {limits.SELECTOR_ROWS}",
            field="data_selector.selector_type",
            fix="write shuffle or random, or lower limit_rows",
        )
    taskset.columns(spec.feature_keys)
    return msgspec.structs.replace(spec, follows_rewards=follows_rewards(spec.selector))
