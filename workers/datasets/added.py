"""`AddedTask`: a task added to a running experiment, read from the log when it is leased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import CodecError, DataError
from rftd.streams.events.task import TaskLeased, TasksAdded
from rftd.streams.folds.spine import Spine
from rftd.streams.log.codec import decode_as
from rftd.streams.log.topics import EXPERIMENTS, partition_of
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.datasets.task import Task, TaskSource, make_task
from rftd.workers.datasets.taskset import OpenTasksets
from rftd.workers.hosts.membership import Membership
from rftd.workers.workflows.registry import check_own_names

_REQUEST_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES // 4
"""Maximum characters of all tasks of one request; in UTF-8, a character takes up to four bytes."""
_POLL_INTERVAL_S: Final = 0.05
"""Seconds between two searches for a task whose lease was read first, from another partition."""
_PATIENCE_S: Final = 60.0
"""Longest wait in seconds for the record of a leased task."""


class AddedTask:
    """One task of a queue, as a source of a single row."""

    digest = ""
    """Empty: the task has no file."""

    def __init__(self, spec: TasksetSpec, row: int, record: dict[str, Any]) -> None:
        """`record` is the task as added, `row` is the number of the task in the queue."""
        self._spec = spec
        self._row = row
        self._record = record

    def task(self, row: int, epoch: int = 0) -> Task:
        """Returns the task. Raises DataError if a key is missing."""
        assert row == self._row
        return make_task(self._record, spec=self._spec, row=row, epoch=epoch)


def check_tasks(stage: StageSpec, tasks: Sequence[str]) -> None:
    """Raises DataError for the first text that is no task of the stage, with its index among the texts."""
    assert stage.taskset is not None
    for number, text in enumerate(tasks):
        try:
            check_own_names(make_task(row_of(text), spec=stage.taskset, row=number), stage.taskset)
        except DataError as error:
            error.where = f"tasks[{number}]"
            raise
    if (size_bytes := sum(map(len, tasks))) > _REQUEST_SIZE_BYTES:
        message = f"{len(tasks)} tasks of {size_bytes} characters together are more than {_REQUEST_SIZE_BYTES}"
        raise DataError(message, fix="add them by several requests")


async def leased_tasks(
    member: Membership, spine: Spine, lease: TaskLeased, tasksets: OpenTasksets
) -> tuple[int, int, TaskSource]:
    """Returns the leased task as (taskset index in the stage, row in that taskset, source of its tasks).

    Raises DataError if the dataset is not the accepted one, or an added task is missing in the log.
    """
    assert spine.spec is not None
    stage = spine.spec.stages[lease.stage]
    number, row = task_place(stage, lease.row)
    taskset = tasksets_of(stage)[number]
    if taskset.queue:
        return number, row, await _added_task(member, spine, lease, taskset)
    return number, row, await tasksets.get(taskset, lease.digest)


async def _added_task(member: Membership, spine: Spine, lease: TaskLeased, taskset: TasksetSpec) -> AddedTask:
    """Returns the task of a lease out of the log, once the spine has been read that far."""
    clock = member.clock
    deadline_s = clock.monotonic_s() + _PATIENCE_S
    while lease.row >= spine.queues.of(lease.stage).rows and clock.monotonic_s() < deadline_s:
        await clock.sleep(_POLL_INTERVAL_S)
    partition = partition_of(EXPERIMENTS, member.experiment)
    try:
        offset, index = spine.queues.of(lease.stage).position_of(lease.row)
        records = await member.log.read(partition, offset, max_records=1)
        added = decode_as(records[0], TasksAdded)
        return AddedTask(taskset, lease.row, row_of(added.tasks[index]))
    except (LookupError, CodecError):
        fix = "see rftd verify"
        raise DataError(f"task {lease.row} is not in the log", where=str(partition), fix=fix) from None


def row_of(text: str) -> dict[str, Any]:
    """Parses the text of an added task as a JSON object. Raises DataError for any other text."""
    try:
        return json_decoder(dict[str, Any]).decode(text.encode())
    except UNREADABLE as error:
        raise DataError(f"it is not a JSON object: {error}", fix="write one JSON object per task") from None
