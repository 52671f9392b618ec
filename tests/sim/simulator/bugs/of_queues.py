"""Bugs of queues of tasks: requests that are taken twice, and leases of what nobody added."""

from __future__ import annotations

from itertools import count
from typing import Any

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.ids import derive
from rftd.workers.control import leasing
from simulator.bugs.bug import Bug, instead


def _add_again(add: Any) -> Any:
    numbers = count()

    async def adding(self: Supervisor, experiment: Any, tasks: Any, *, request_id: Any) -> Any:
        return await add(self, experiment, tasks, request_id=derive(request_id, next(numbers)))

    return adding


def _one_more(rows_of: Any) -> Any:
    def counting(state: Any, stage: Any) -> int | None:
        rows = rows_of(state, stage)
        return rows if rows is None else rows + 1

    return counting


BUGS = (
    Bug(
        "a request that is repeated adds its tasks again",
        "added_once",
        instead(Supervisor, "add_tasks", _add_again),
        within_seeds=200,
    ),
    Bug(
        "a task is given out that nobody added",
        "verify: no-task-skipped",
        instead(leasing, "available_rows", _one_more),
        within_seeds=200,
    ),
)
