"""Tasks added to a run: the events recording a request, and the reasons for refusing one."""

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
    """Builds the event adding tasks in the name of `by`. Raises ConflictError without a queue, DataError for an invalid
    task.
    """
    stage = _queue_of(spec)
    await asyncio.to_thread(check_tasks, spec.stages[stage], tasks)
    return TasksAdded(stage=stage, tasks=tuple(tasks), by=by)


def ending(spec: ExperimentSpec, *, reason: str, by: str) -> TasksEnded:
    """Builds the event ending the queue in the name of `by`. Raises ConflictError without a queue."""
    return TasksEnded(stage=_queue_of(spec), reason=reason, by=by)


def check_begun(spine: Spine) -> None:
    """Raises WaitTimeoutError if the experiment's run is still to come, UnreachableError if it is starting now."""
    if spine.ended:
        return
    state = f"the experiment is {spine.status}, and not under way"
    if spine.status is Status.RUNNING:
        raise UnreachableError(state, fix="ask again in a moment")
    raise WaitTimeoutError(state, fix="ask again, with the same key, once it runs")


def _queue_of(spec: ExperimentSpec) -> int:
    """Returns the index of the stage with a task queue. Raises ConflictError without one."""
    for index, stage in enumerate(spec.stages):
        if is_queue(stage):
            return index
    fix = "set storage_type: queue in its taskset, and submit it again"
    raise ConflictError("its taskset is not a queue", fix=fix)


def check_queue(state: RunState, event: TasksAdded | TasksEnded) -> None:
    """Raises ConflictError for a full or ended queue, an ended stage, and for ending an empty queue."""
    spine = state.spine
    assert spine.spec is not None
    stages = spine.spec.stages
    if spine.ended:
        raise ConflictError(f"it is {spine.status}", fix="submit a new experiment")
    queue = spine.queues.of(event.stage)
    if queue.ended:
        problem = f"its task queue was ended after {queue.rows} tasks"
        raise ConflictError(problem, fix="submit a new experiment for the others")
    if spine.stage > event.stage or (spine.stage == event.stage and spine.stage_completed):
        raise ConflictError(f"stage {stages[event.stage].name!r} is over", fix="submit a new experiment")
    if isinstance(event, TasksAdded) and queue.requests >= limits.TASK_REQUESTS:
        problem = f"{queue.requests} requests have added tasks, the limit for one experiment"
        raise ConflictError(problem, fix="submit a new experiment for the others, and add many tasks by each request")
    if isinstance(event, TasksEnded) and not queue.rows:
        raise ConflictError("no task was added, so there is no queue to end", fix="add some, or rftd cancel")
