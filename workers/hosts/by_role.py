"""`ExecutorByRole`: a separate launcher for each role, for example local processes and actors of Ray."""

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
    """Forwards each call to the launcher of the worker's role; implements `Executor`, `OpeningExecutor` and
    `RemoteExecutor`.
    """

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        """`executors` maps every role (`explorer`, `trainer`) to its launcher."""
        self._by_role = dict(executors)

    def start(self, order: WorkerOrder) -> Handle:
        return self._by_role[order.role].start(order)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return self._by_role[order.role].adopt(order, started)

    def lives(self, started: WorkerStarted) -> bool | None:
        return self._by_role[started.role].lives(started)

    def host(self) -> Host:
        return msgspec.structs.replace(self._by_role[EXPLORER].host(), trainers=self._by_role[TRAINER].host())

    def clear(self, order: WorkerOrder) -> Handle | None:
        return self._by_role[order.role].clear(order)

    def is_remote(self, role: str) -> bool:
        executor = self._by_role[role]
        return isinstance(executor, RemoteExecutor) and executor.is_remote(role)

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        # Each launcher is called once, because searching a machine costs as much for one slot as for all.
        searches: dict[int, Search] = {}
        for executor in set(self._by_role.values()):
            order_numbers = [number for number, order in enumerate(orders) if self._by_role[order.role] is executor]
            if order_numbers and isinstance(executor, OpeningExecutor):
                searches |= dict(
                    zip(order_numbers, executor.opening([orders[number] for number in order_numbers]), strict=True)
                )
        return [searches.get(number, _NOBODY) for number in range(len(orders))]


class _Nobody:
    """The search of a launcher unable to find workers before their join."""

    over = True
    waits = None

    def worker(self, order: WorkerOrder) -> UUID | None:
        return None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        return None


_NOBODY: Final = _Nobody()
