"""The outbox: events on their way to the log, batched, bounded, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.envelope import Draft
from rftd.streams.log.log import EventLog

CAPACITY_DRAFTS = 1024
"""Number of queued events from which on `put` waits; the events of one call may exceed it."""
BATCH_DRAFTS = 256
"""Maximum number of events in one append."""
GATHER_S = 0.01
"""Minimum seconds between two appends that are not full: an append costs the daemon more than a few records."""


class Outbox:
    """A bounded queue of events for the log: `put` waits while it is full, and `run` appends the queued events in
    batches.
    """

    def __init__(self, log: EventLog, clock: Clock, on_full: Callable[[LogFullError], None] | None = None) -> None:
        """`on_full` is called with the error when the log has no space."""
        self._log = log
        self._clock = clock
        self._on_full = on_full
        self._waiting: list[Draft] = []
        """Queued events, in order."""
        self._filled, self._room, self._safe = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._safe.set()

    async def put(self, drafts: Sequence[Draft]) -> None:
        """Queues events, waiting for room; they are in the log once `drained` has returned True."""
        # A loop, because the first of several waiting producers may fill it again.
        while not self._room.is_set():
            await self._room.wait()
        self._waiting += drafts
        self._safe.clear()
        self._filled.set()
        # After the addition: one call may exceed the capacity, so that its events stay together.
        if len(self._waiting) >= CAPACITY_DRAFTS:
            self._room.clear()

    async def run(self) -> None:
        """Appends batches of drafts until cancelled."""
        next_s = 0.0
        while True:
            await self._filled.wait()
            left_s = next_s - self._clock.monotonic_s()
            if left_s > 0 and len(self._waiting) < BATCH_DRAFTS:
                await self._clock.sleep(min(left_s, GATHER_S))
            next_s = self._clock.monotonic_s() + GATHER_S
            drafts = self._waiting[:BATCH_DRAFTS]
            del self._waiting[:BATCH_DRAFTS]
            if len(self._waiting) < CAPACITY_DRAFTS:
                self._room.set()
            faults.point("explorer.before_append")
            await append_when_space(self._log, drafts, clock=self._clock, on_full=self._on_full)
            faults.point("explorer.after_append")
            if not self._waiting:
                self._filled.clear()
                self._safe.set()

    async def drained(self, timeout_s: float) -> bool:
        """Waits until every queued event is in the log, and returns True; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._safe.wait()
        except TimeoutError:
            return False
        return True
