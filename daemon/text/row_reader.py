"""`RowReader`: the tasks of rollouts, read from the rows of their tasksets."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.taskset import Taskset

_WAIT_S: Final = 5.0
"""Maximum seconds to wait for rows: a large file is read whole at its opening."""


class RowReader:
    """Tasksets open for single rows; the taskset read longest ago is closed first."""

    def __init__(self) -> None:
        # A thread outside of the loop's pool: a slow file must not keep the daemon's other work waiting.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="row-reader")
        self._opened: OrderedDict[str, Taskset] = OrderedDict()

    async def task(self, stage: StageSpec, row: int, epoch: int) -> Task | None:
        """Returns the task of a row counted over all tasksets of the stage; None for a queue. Raises DataError."""
        if not tasksets_of(stage):
            return None
        task_row = task_place(stage, row)
        spec = tasksets_of(stage)[task_row.taskset]
        if spec.queue or not spec.path:
            return None
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._task, spec, task_row.row, epoch)
        reading.add_done_callback(_noticed)
        try:
            # Shielded: the opening continues, so that a later request finds the rows.
            return await asyncio.wait_for(asyncio.shield(reading), _WAIT_S)
        except TimeoutError:
            raise DataError(f"{spec.path} is still being read", fix="ask again in a moment") from None

    def _task(self, spec: TasksetSpec, row: int, epoch: int) -> Task:
        taskset = self._taskset(spec)
        if spec.digest and taskset.digest != spec.digest:
            raise DataError(f"{spec.path} is not what the experiment was accepted with", where=spec.path)
        return taskset.task(row, epoch)

    def _taskset(self, spec: TasksetSpec) -> Taskset:
        key = repr(spec)
        opened = self._opened.pop(key, None)
        if opened is not None and opened.touched:
            opened.close()
            opened = None
        if opened is None:
            try:
                taskset_files(spec)
            except DataError:
                raise DataError(f"{spec.path} does not exist here", where=spec.path) from None
            opened = Taskset.open(spec)
        self._opened[key] = opened
        while len(self._opened) > limits.TEXT_TASKSETS:
            self._opened.popitem(last=False)[1].close()
        return opened


def _noticed(reading: asyncio.Future[Task]) -> None:
    """Retrieves the error of a reading nobody awaits any more."""
    if not reading.cancelled():
        reading.exception()
