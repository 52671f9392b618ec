"""Tasks that are added to a run: the events that a request becomes, and why it may not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rftd.ops import limits
from rftd.ops.errors import ConflictError, UnreachableError, WaitTimeoutError
from rftd.streams.events.task import TasksAdded, TasksEnded
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.stage_tasks import is_queue
from rftd.workers.datasets.added import check_tasks


async def adding(spec: ExperimentSpec, tasks: Sequence[str], *, by: str) -> TasksAdded:
    """The event that adds the tasks. Raises ConflictError without a queue, DataError for what is no task of it."""
    stage = _queue_of(spec)
    await asyncio.to_thread(check_tasks, spec.stages[stage], tasks)
    return TasksAdded(stage=stage, tasks=tuple(tasks), by=by)


def ending(spec: ExperimentSpec, *, reason: str, by: str) -> TasksEnded:
    """The event that ends the queue. Raises ConflictError without one."""
    return TasksEnded(stage=_queue_of(spec), reason=reason, by=by)


def check_begun(spine: Spine) -> None:
    """Raises WaitTimeoutError for an experiment whose run is still to come, UnreachableError if it comes now."""
    if spine.ended:
        return
    what = f"the experiment is {spine.status}, and not under way"
    if spine.status is Status.RUNNING:
        raise UnreachableError(what, fix="ask again in a moment")
    raise WaitTimeoutError(what, fix="ask again, with the same key, once it runs")


def _queue_of(spec: ExperimentSpec) -> int:
    """The stage whose tasks are a queue. Raises ConflictError if none is."""
    for index, stage in enumerate(spec.stages):
        if is_queue(stage):
            return index
    fix = "write storage_type: queue in its taskset, and submit it anew"
    raise ConflictError("its tasks are no queue", fix=fix)


def check_queue(state: RunState, event: TasksAdded | TasksEnded) -> None:
    """Raises ConflictError for a queue that has ended, whose stage has, or that is full, and for an empty one's end."""
    spine = state.spine
    assert spine.spec is not None
    stages = spine.spec.stages
    if spine.ended:
        raise ConflictError(f"it is {spine.status}", fix="submit a new experiment")
    queue = spine.queues.of(event.stage)
    if queue.ended:
        what = f"the end of its tasks was told, after {queue.rows} of them"
        raise ConflictError(what, fix="submit a new experiment for the others")
    if spine.stage > event.stage or (spine.stage == event.stage and spine.stage_completed):
        raise ConflictError(f"stage {stages[event.stage].name!r} is over", fix="submit a new experiment")
    if isinstance(event, TasksAdded) and queue.requests >= limits.TASK_REQUESTS:
        what = f"{queue.requests} requests have added tasks, which is the most of one experiment"
        raise ConflictError(what, fix="submit a new experiment for the others, and add many tasks by each request")
    if isinstance(event, TasksEnded) and not queue.rows:
        raise ConflictError("no task was added, so there is nothing to end with", fix="add some, or rftd cancel")
