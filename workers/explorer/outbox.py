"""The outbox: events on their way to the log, batched, bounded, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.envelope import Draft
from rftd.streams.log import EventLog
from rftd.streams.patience import append_when_space

CAPACITY_DRAFTS = 1024
BATCH_DRAFTS = 256
GATHER_S = 0.01
"""Least time between two appends that are not full: one costs the daemon more than the records in it."""


class Outbox:
    """Producers wait when it is full; `run` appends what has gathered since the last append."""

    def __init__(self, log: EventLog, clock: Clock, on_full: Callable[[LogFullError], None] | None = None) -> None:
        self._log = log
        self._clock = clock
        self._on_full = on_full
        self._queue: asyncio.Queue[Draft] = asyncio.Queue(CAPACITY_DRAFTS)

    async def put(self, draft: Draft) -> None:
        """Hands an event over; it is safe once `drained` returned."""
        await self._queue.put(draft)

    async def run(self) -> None:
        """Appends until cancelled."""
        next_s = 0.0
        while True:
            drafts = [await self._queue.get()]
            left_s = next_s - self._clock.monotonic_s()
            if left_s > 0 and self._queue.qsize() < BATCH_DRAFTS - 1:
                await self._clock.sleep(min(left_s, GATHER_S))
            next_s = self._clock.monotonic_s() + GATHER_S
            while len(drafts) < BATCH_DRAFTS and not self._queue.empty():
                drafts.append(self._queue.get_nowait())
            faults.point("explorer.before_append")
            await append_when_space(self._log, drafts, clock=self._clock, on_full=self._on_full)
            faults.point("explorer.after_append")
            for _ in drafts:
                self._queue.task_done()

    async def drained(self, timeout_s: float) -> bool:
        """True once everything handed over is in the log, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._queue.join()
        except TimeoutError:
            return False
        return True
