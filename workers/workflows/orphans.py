"""Work that may not obey: bounded in time, and given up on where it does not end when it is cancelled."""

from __future__ import annotations

import asyncio
from asyncio import tasks as lifetime
from collections.abc import Mapping
from typing import Any, TypeVar

from rftd.ops import limits
from rftd.ops.errors import RolloutTimeoutError, WorkError
from rftd.ops.logs import Logger

T = TypeVar("T")


class OrphanedError(RolloutTimeoutError):
    """The work goes on after its time-out, deaf to its cancellation; to try it again would make one more of it."""


class Orphans:
    """Ends workflows, and counts those that could not be ended.

    An orphan keeps what memory and engine places it holds until its process ends, so that has to happen once there are
    too many.
    """

    def __init__(self, log: Logger, *, grace_s: float | None = None, most: int | None = None) -> None:
        """`grace_s` and `most` are the limits' if None."""
        self.count = 0
        self.grace_s = limits.CANCEL_GRACE_S if grace_s is None else grace_s
        self._most = limits.ORPHANED_ROLLOUTS if most is None else most
        self._log = log
        self._kept: set[asyncio.Task[Any]] = set()

    async def end(self, running: Mapping[asyncio.Task[T], str]) -> set[asyncio.Task[T]]:
        """Cancels tasks, each given with how errors name its work. Returns those that did not end within the grace."""
        if not running:
            return set()
        for task in running:
            task.cancel()
        deaf: set[asyncio.Task[T]] = set()
        try:
            await asyncio.wait(running, timeout=self.grace_s)
        finally:
            # Whoever waits here may be cancelled in turn; what still runs then must be counted all the same.
            for task, where in running.items():
                if not task.done():
                    deaf.add(task)
                    self._adopt(task, where)
                elif not task.cancelled():
                    # An exception that nobody asked for would be logged by asyncio when the task is collected.
                    task.exception()
        return deaf

    @property
    def too_many(self) -> bool:
        """True once the process should be started anew."""
        return self.count >= self._most

    def error(self) -> WorkError:
        """The error with which that process leaves."""
        return WorkError(
            f"{self.count} rollouts did not end when they were cancelled",
            fix="let the workflow pass CancelledError on; the explorer is started anew",
        )

    def _adopt(self, task: asyncio.Task[Any], where: str) -> None:
        self.count += 1
        self._kept.add(task)
        task.add_done_callback(self._let_go)
        # The loop's end waits for every task that it knows; for this one it would wait for ever.
        lifetime._unregister_task(task)
        self._log.warning("rollout.orphaned", where=where, orphans=self.count, most=self._most)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        """Lets go of an orphan that ended after all, when nobody waits for it any more."""
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()  # seen, as in `end`
