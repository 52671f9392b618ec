"""The tasks of a queue, added while their experiment runs, and the end of the queue."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import Reason, Receipt, receipt_of
from rftd.daemon.http.views.route import After, Commanded, Daemon, Name, command, read

MOST_TASKS: Final = 1000
"""Maximum number of tasks added by one request."""
_TAG: Final = "tasks"
"""Chapter of the OpenAPI document with these routes."""


class AddTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/tasks: up to 1,000 rows."""

    tasks: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_TASKS)]
    """Rows as in a file of tasks: each an object with the keys named by `format`."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The task queue of one stage: tasks added and tried, and whether it has ended."""

    stage: int
    """Index of the stage with the queue, from 0."""
    name: str
    """Name of the stage."""
    added: int
    """Number of tasks added so far."""
    requests: int
    """Number of requests that added tasks."""
    tried: int
    """Number of tasks with all rollouts ended."""
    ended: bool
    """True once the queue is ended: no more tasks will come."""


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of an experiment; empty if it has none."""

    items: list[QueueState]
    """The queues of the experiment."""


@read("/v1/experiments/{name}/tasks", QueueList, tag=_TAG)
async def queues(daemon: Daemon, name: Name, after: After = None) -> QueueList:
    """The task queues of an experiment: the number of tasks added and tried, and whether more will come."""
    from rftd.storage.queries.failed_tasks import tried_tasks
    from rftd.streams.log.shared_history import spine_of
    from rftd.streams.spec.stage_tasks import is_queue

    id = await daemon.find(name, after)
    spine = daemon.operations.spine(id) or await spine_of(daemon.log, id)
    stages = spine.spec.stages if spine.spec is not None else ()
    queue_states: list[QueueState] = []
    async with daemon.read(after) as connection:
        for index, stage in enumerate(stages):
            if not is_queue(stage):
                continue
            queue = spine.queues.of(index)
            queue_states.append(
                QueueState(
                    stage=index,
                    name=stage.name,
                    added=queue.rows,
                    requests=queue.requests,
                    tried=await tried_tasks(connection, id, stage=index, added=queue.rows),
                    ended=queue.ended,
                )
            )
    return QueueList(items=queue_states)


@command("/v1/experiments/{name}/tasks", AddTasks, Receipt, tag=_TAG, summary="Add tasks")
async def add_tasks(daemon: Commanded, body: AddTasks, key: UUID, name: Name) -> Receipt:
    """Add tasks to the queue of an experiment under way. The answer comes once they are in the log."""
    id = await daemon.find(name)
    tasks = [msgspec.json.encode(task).decode() for task in body.tasks]
    return receipt_of(id, await daemon.operations.add_tasks(id, tasks, request_id=key))


@command("/v1/experiments/{name}/tasks/end", Reason, Receipt, tag=_TAG, optional=True, summary="End tasks")
async def end_tasks(daemon: Commanded, body: Reason, key: UUID, name: Name) -> Receipt:
    """End a queue of tasks: the experiment ends with the step taking in the last of them."""
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.end_tasks(id, reason=body.reason, request_id=key))
