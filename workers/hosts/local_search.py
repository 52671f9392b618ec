"""`LocalSearch`: a look through this machine's processes for workers that an earlier daemon started, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias
from uuid import UUID

import psutil

from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.leftovers import lives, visible

Key: TypeAlias = tuple[UUID, str, int]
"""Experiment, role and slot of a place."""


class LocalSearch:
    """Implements `Search`. On a busy machine the look takes seconds, which nothing but the places themselves waits."""

    waits = None

    def __init__(
        self, places: Mapping[str, WorkerOrder], take_over: Callable[[WorkerOrder, psutil.Process], Handle]
    ) -> None:
        """`places` are the orders by the marks of their places; `take_over` makes a handle of a process that lives."""
        self._places = dict(places)
        self._take_over = take_over
        self._found: dict[Key, tuple[UUID, psutil.Process]] = {}
        self._over = threading.Event()
        threading.Thread(target=self._look, name="search", daemon=True).start()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def worker(self, order: WorkerOrder) -> UUID | None:
        found = self._found.get(_key(order)) if self.over else None
        return found[0] if found is not None else None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        found = self._found.get(_key(order)) if self.over else None
        if found is None or found[0] != order.worker or not lives(found[1]):
            return None
        return self._take_over(order, found[1])

    def _look(self) -> None:
        try:
            seen: dict[str, list[tuple[UUID, psutil.Process]]] = {}
            for each in visible():
                # The first process of its session is the worker; the others are what it started.
                first = each.mark in self._places and each.session == each.process.pid
                if first and (worker := _ordered_as(each.process)) is not None:
                    seen.setdefault(each.mark, []).append((worker, each.process))
            # Of two in one place one is to end, and which one nobody can tell: both do, before the next one starts.
            self._found = {_key(self._places[mark]): found[0] for mark, found in seen.items() if len(found) == 1}
        finally:
            # Whatever went wrong: the places wait for it, and what is there is ended before the next one starts.
            self._over.set()


def _key(order: WorkerOrder) -> Key:
    return order.experiment, order.role, order.slot


def _ordered_as(process: psutil.Process) -> UUID | None:
    """The id in the order of a worker, from its command line; None for another process."""
    try:
        words = process.cmdline()
        return UUID(words[words.index("--worker") + 1])
    except (psutil.Error, ValueError, IndexError):
        return None
