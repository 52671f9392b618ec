"""The tasks of a queue: they are added while their experiment runs, and their end is told."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import Reason, Receipt, receipt_of
from rftd.daemon.http.views.route import After, Commanded, Daemon, Name, command, read

MOST_TASKS: Final = 1000
"""The most tasks that one request may add."""
_TAG: Final = "tasks"


class AddTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/tasks."""

    tasks: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_TASKS)]
    """Rows as a file of tasks has them: each an object with the keys that `format` names."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of tasks: those of one stage of an experiment."""

    stage: int
    name: str
    """The name of the stage."""
    added: int
    requests: int
    """The number of requests that added them."""
    tried: int
    """The number of them whose rollouts have all ended."""
    ended: bool
    """True if no more will come."""


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of an experiment; of one without any, none."""

    items: list[QueueState]


@read("/v1/experiments/{name}/tasks", QueueList, tag=_TAG)
async def queues(daemon: Daemon, name: Name, after: After = None) -> QueueList:
    """The queues of tasks of an experiment: how many were added and tried, and whether more will come."""
    from rftd.storage.queries.failed_tasks import tried_tasks
    from rftd.streams.log.shared_history import spine_of
    from rftd.streams.spec.stage_tasks import is_queue

    id = await daemon.find(name, after)
    spine = daemon.operations.spine(id) or await spine_of(daemon.log, id)
    stages = spine.spec.stages if spine.spec is not None else ()
    items: list[QueueState] = []
    async with daemon.read(after) as connection:
        for index, stage in enumerate(stages):
            if not is_queue(stage):
                continue
            queue = spine.queues.of(index)
            items.append(
                QueueState(
                    stage=index,
                    name=stage.name,
                    added=queue.rows,
                    requests=queue.requests,
                    tried=await tried_tasks(connection, id, stage=index, added=queue.rows),
                    ended=queue.ended,
                )
            )
    return QueueList(items=items)


@command("/v1/experiments/{name}/tasks", AddTasks, Receipt, tag=_TAG, summary="Add tasks")
async def add_tasks(daemon: Commanded, body: AddTasks, key: UUID, name: Name) -> Receipt:
    """Add tasks to the queue of an experiment under way. They are in the log when this answers."""
    id = await daemon.find(name)
    tasks = [msgspec.json.encode(task).decode() for task in body.tasks]
    return receipt_of(id, await daemon.operations.add_tasks(id, tasks, request_id=key))


@command("/v1/experiments/{name}/tasks/end", Reason, Receipt, tag=_TAG, optional=True, summary="End tasks")
async def end_tasks(daemon: Commanded, body: Reason, key: UUID, name: Name) -> Receipt:
    """Tell the end of a queue of tasks: the experiment ends with the step that takes in the last of them."""
    id = await daemon.find(name)
    return receipt_of(id, await daemon.operations.end_tasks(id, reason=body.reason, request_id=key))
