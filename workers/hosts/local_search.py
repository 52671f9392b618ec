"""`LocalSearch`: searches the local processes for workers started by an earlier daemon, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias
from uuid import UUID

import psutil

from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.leftovers import lives, visible

Key: TypeAlias = tuple[UUID, str, int]
"""Identity of a slot: experiment, role and slot number."""


class LocalSearch:
    """Searches the machine's processes, once and on a thread, for workers started by an earlier daemon; implements
    `Search`. Takes seconds on a busy machine; only the slots concerned wait.
    """

    waits = None
    """None, because the search waits for nothing."""

    def __init__(
        self, orders: Mapping[str, WorkerOrder], take_over: Callable[[WorkerOrder, psutil.Process], Handle]
    ) -> None:
        """`orders` are the orders of the slots to search for, by slot mark; `take_over` returns the handle of a found
        process.
        """
        self._orders = dict(orders)
        """Order of each slot's mark."""
        self._take_over = take_over
        self._found: dict[Key, tuple[UUID, psutil.Process]] = {}
        """Worker and process found in each slot."""
        self._over = threading.Event()
        """Set once the search is complete."""
        threading.Thread(target=self._search_processes, name="search", daemon=True).start()

    @property
    def over(self) -> bool:
        """True once all processes of the machine were searched, with or without success."""
        return self._over.is_set()

    def worker(self, order: WorkerOrder) -> UUID | None:
        """Returns the id of the worker found in the order's slot; None during the search, and without exactly one."""
        match = self._found.get(_slot_key(order)) if self.over else None
        return match[0] if match is not None else None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """Returns the handle of the found process, if it still runs and has the order's worker id; else None."""
        match = self._found.get(_slot_key(order)) if self.over else None
        if match is None or match[0] != order.worker or not lives(match[1]):
            return None
        return self._take_over(order, match[1])

    def _search_processes(self) -> None:
        """Searches all processes once; the body of the search's thread."""
        try:
            workers: dict[str, list[tuple[UUID, psutil.Process]]] = {}
            for candidate in visible():
                # The first process of a session is the worker; the others are children.
                first = candidate.mark in self._orders and candidate.session == candidate.process.pid
                if first and (worker := _ordered_as(candidate.process)) is not None:
                    workers.setdefault(candidate.mark, []).append((worker, candidate.process))
            # Of two workers in a slot an unknown one should end: both end, before the next worker starts.
            self._found = {
                _slot_key(self._orders[mark]): matches[0] for mark, matches in workers.items() if len(matches) == 1
            }
        finally:
            # Even after an error: the slots wait for the search, and existing processes are ended before the next
            # worker starts.
            self._over.set()


def _slot_key(order: WorkerOrder) -> Key:
    """Returns the slot of an order."""
    return order.experiment, order.role, order.slot


def _ordered_as(process: psutil.Process) -> UUID | None:
    """Returns the worker id of an order, from the process's command line; None for any other process."""
    try:
        words = process.cmdline()
        return UUID(words[words.index("--worker") + 1])
    except (psutil.Error, ValueError, IndexError):
        return None
