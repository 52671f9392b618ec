"""The tasks of a queue: they are added while their experiment runs, and their end is told."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.views.commands import Reason, Receipt, receipt_of
from rftd.daemon.views.route import Commanded, Name, command

MOST_TASKS: Final = 1000
"""The most tasks that one request may add."""
_TAG: Final = "tasks"


class AddTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/tasks."""

    tasks: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_TASKS)]
    """Rows as a file of tasks has them: each an object with the keys that `format` names."""


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
