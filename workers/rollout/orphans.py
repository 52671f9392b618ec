"""Work that may not obey: bounded in time, and given up on where it does not end when it is cancelled."""

from __future__ import annotations

import asyncio
from asyncio import tasks as lifetime
from collections.abc import Coroutine
from typing import Any, TypeVar

from rftd.ops import limits
from rftd.ops.errors import RolloutError, RolloutTimeoutError, WorkError
from rftd.ops.logs import Logger

T = TypeVar("T")


class OrphanedError(RolloutTimeoutError):
    """The work goes on after its time-out, deaf to its cancellation; to try it again would make one more of it."""


class Orphans:
    """Runs workflows, and counts those that could not be ended.

    An orphan keeps what memory and engine places it holds until its process ends, so that has to happen once there are
    too many.
    """

    def __init__(self, log: Logger, *, grace_s: float | None = None, most: int | None = None) -> None:
        """`grace_s` and `most` are the limits' if None."""
        self.count = 0
        self._grace_s = limits.CANCEL_GRACE_S if grace_s is None else grace_s
        self._most = limits.ORPHANED_ROLLOUTS if most is None else most
        self._log = log
        self._kept: set[asyncio.Task[Any]] = set()

    async def bounded(self, work: Coroutine[Any, Any, T], timeout_s: float, *, where: str) -> T:
        """What the work returns or raises. Returns at most a grace after `timeout_s`, or after being cancelled.

        Raises RolloutTimeoutError if the time is over, OrphanedError if then the work did not end either.
        """
        # Not of a TaskGroup, which could never be left while it runs.
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._end(task, where)
            raise
        if task.done():
            if task.cancelled():
                raise RolloutError(
                    "the workflow cancelled itself", where=where, fix="correct the workflow, or this row"
                )
            return task.result()
        if not await self._end(task, where):
            raise OrphanedError(
                f"no result within {timeout_s:g} s, and it goes on {self._grace_s:g} s after it was cancelled",
                where=where,
                fix="let the workflow pass CancelledError on",
            )
        raise RolloutTimeoutError(f"no result within {timeout_s:g} s", where=where, fix="raise explorer.max_timeout")

    @property
    def too_many(self) -> bool:
        """True once the process should be started anew."""
        return self.count >= self._most

    def error(self) -> WorkError:
        """What that process says when it leaves."""
        return WorkError(
            f"{self.count} rollouts did not end when they were cancelled",
            fix="let the workflow pass CancelledError on; the explorer is started anew",
        )

    async def _end(self, task: asyncio.Task[Any], where: str) -> bool:
        """Cancels it; True if it ended in time."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=self._grace_s)
        finally:
            if not task.done():
                self._adopt(task, where)
        if task.done() and not task.cancelled():
            task.exception()  # seen, so that nobody is told of it later
        return task.done()

    def _adopt(self, task: asyncio.Task[Any], where: str) -> None:
        self.count += 1
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        # The loop's end waits for every task that it knows; for this one it would wait for ever.
        lifetime._unregister_task(task)
        self._log.warning("rollout.orphaned", where=where, orphans=self.count, most=self._most)
