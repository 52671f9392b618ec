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
        """Launcher of each role."""

    def start(self, order: WorkerOrder) -> Handle:
        """Orders a worker from the launcher of its role, and returns the worker's handle; see `Executor.start`."""
        return self._by_role[order.role].start(order)

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """Returns the handle of an earlier daemon's worker from the launcher of its role; see `Executor.adopt`."""
        return self._by_role[order.role].adopt(order, started)

    def lives(self, started: WorkerStarted) -> bool | None:
        """True if the worker's process runs, according to the launcher of its role; see `Executor.lives`."""
        return self._by_role[started.role].lives(started)

    def host(self) -> Host:
        """Returns the explorers' devices as a host, with the devices of trainers in `trainers`; see `Executor.host`."""
        return msgspec.structs.replace(self._by_role[EXPLORER].host(), trainers=self._by_role[TRAINER].host())

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Ends the leftovers of the order's slot by the launcher of its role; see `Executor.clear`."""
        return self._by_role[order.role].clear(order)

    def is_remote(self, role: str) -> bool:
        """True if the launcher of the role does not pass the daemon's environment on; see `RemoteExecutor`."""
        executor = self._by_role[role]
        return isinstance(executor, RemoteExecutor) and executor.is_remote(role)

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        # Each launcher is called once, because searching a machine costs as much for one slot as for all.
        """Begins a search by each launcher for its orders; a launcher that cannot search finds no worker."""
        searches: dict[int, Search] = {}
        for executor in set(self._by_role.values()):
            order_numbers = [number for number, order in enumerate(orders) if self._by_role[order.role] is executor]
            if order_numbers and isinstance(executor, OpeningExecutor):
                searches |= dict(
                    zip(order_numbers, executor.opening([orders[number] for number in order_numbers]), strict=True)
                )
        return [searches.get(number, _NO_SEARCH) for number in range(len(orders))]


class _NoSearch:
    """The search of a launcher unable to find workers before their join."""

    over = True
    """The search is complete."""
    waits = None
    """No obstacle, because the search is complete from the beginning."""

    def worker(self, order: WorkerOrder) -> UUID | None:
        """Returns None: no worker is found."""
        return None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """Returns None: no worker is found."""
        return None


_NO_SEARCH: Final = _NoSearch()
"""The search that finds no worker."""
