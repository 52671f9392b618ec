"""`ExecutorByRole`: a launcher of its own for each role, such as processes of this machine and actors of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.split_submission import EXPLORER, TRAINER
from rftd.workers.devices.host import Host
from rftd.workers.hosts.executor import Executor, Handle, OpeningExecutor, RemoteExecutor, Search, WorkerOrder


class ExecutorByRole:
    """Implements `Executor`: each order goes to the launcher of its role."""

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        """`executors` are the launchers by role; all roles are there."""
        self._of = dict(executors)

    def start(self, order: WorkerOrder) -> Handle:
        return self._of[order.role].start(order)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return self._of[order.role].adopt(order, started)

    def lives(self, started: WorkerStarted) -> bool | None:
        return self._of[started.role].lives(started)

    def host(self) -> Host:
        return msgspec.structs.replace(self._of[EXPLORER].host(), trainers=self._of[TRAINER].host())

    def clear(self, order: WorkerOrder) -> Handle | None:
        return self._of[order.role].clear(order)

    def is_remote(self, role: str) -> bool:
        executor = self._of[role]
        return isinstance(executor, RemoteExecutor) and executor.is_remote(role)

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        # Each launcher is asked once, for to look through a machine costs as much for one place as for all.
        found: dict[int, Search] = {}
        for executor in set(self._of.values()):
            mine = [number for number, order in enumerate(orders) if self._of[order.role] is executor]
            if mine and isinstance(executor, OpeningExecutor):
                found |= dict(zip(mine, executor.opening([orders[number] for number in mine]), strict=True))
        return [found.get(number, _NOBODY) for number in range(len(orders))]


class _Nobody:
    """The search of a launcher that never finds who has not joined."""

    over = True
    waits = None

    def worker(self, order: WorkerOrder) -> UUID | None:
        return None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        return None


_NOBODY: Final = _Nobody()
