"""Work that may ignore cancellation: bounded in time, and abandoned if it does not end."""

from __future__ import annotations

import asyncio
from asyncio import tasks as lifetime
from collections.abc import Mapping
from typing import Any, TypeVar

from rftd.ops import limits
from rftd.ops.errors import RolloutTimeoutError, WorkError
from rftd.ops.logs import Logger

T = TypeVar("T")
"""Type of the work's result."""


class OrphanedError(RolloutTimeoutError):
    """A rollout is still running after its time-out, although it was cancelled; a retry would run next to it."""


class Orphans:
    """Ends workflows, and counts the abandoned ones still running.

    An orphan keeps memory and engine slots until the process ends, so the process must end once there are too many.
    """

    def __init__(self, log: Logger, *, grace_s: float | None = None, most: int | None = None) -> None:
        """`grace_s` and `most` default to the project's limits."""
        self.grace_s = limits.CANCEL_GRACE_S if grace_s is None else grace_s
        """Seconds between the cancellation and giving up."""
        self._most = limits.ORPHANED_ROLLOUTS if most is None else most
        """Number of abandoned workflows from which on the process must end, because each may keep memory and engine
        slots.
        """
        self._log = log
        self._orphaned: set[asyncio.Task[Any]] = set()
        """Tasks of abandoned workflows that have not ended yet."""

    async def end(self, running: Mapping[asyncio.Task[T], str]) -> set[asyncio.Task[T]]:
        """Cancels tasks (mapped to the names of their work), and returns those still running after the grace period."""
        if not running:
            return set()
        for task in running:
            task.cancel()
        deaf: set[asyncio.Task[T]] = set()
        try:
            await asyncio.wait(running, timeout=self.grace_s)
        finally:
            # The waiting caller may itself be cancelled; tasks still running must be counted all the same.
            for task, where in running.items():
                if not task.done():
                    deaf.add(task)
                    self._abandon(task, where)
                elif not task.cancelled():
                    # Retrieved, because asyncio would log the exception of an unobserved task at its collection.
                    task.exception()
        return deaf

    @property
    def count(self) -> int:
        """Number of abandoned workflows still running; an ended workflow has returned memory and slots."""
        return len(self._orphaned)

    @property
    def too_many(self) -> bool:
        """True once so many cancelled workflows are still running that the process should be restarted."""
        return self.count >= self._most

    def error(self) -> WorkError:
        """Returns the error that ends the process, for a restart without orphans."""
        return WorkError(
            f"{self.count} rollouts did not end when they were cancelled",
            fix="let the workflow propagate CancelledError; the explorer restarts",
        )

    def _abandon(self, task: asyncio.Task[Any], where: str) -> None:
        """Records an orphan, and lets the event loop end without waiting for the orphan."""
        self._orphaned.add(task)
        task.add_done_callback(self._on_late_end)
        # The loop's end waits for every registered task; for this one it would wait for ever.
        lifetime._unregister_task(task)
        self._log.warning("rollout.orphaned", where=where, orphans=self.count, most=self._most)

    def _on_late_end(self, task: asyncio.Task[Any]) -> None:
        """Forgets an orphan that ended after all."""
        self._orphaned.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, as in `end`
