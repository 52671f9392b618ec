"""Where time comes from. Nothing else in rftd reads a clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for waits, and sleeping."""

    def now_ns(self) -> int:
        """Unix time in nanoseconds; for display, deadlines and `decided_at`, never for safety."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start, never backwards."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Returns after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class ManualClock:
    """A clock that moves when a test says so, or when something sleeps on it."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_s(self) -> float:
        return self._now_ns / 1e9

    def advance(self, delay_s: float) -> None:
        """Moves the clock forward by `delay_s`."""
        assert delay_s >= 0
        self._now_ns += int(delay_s * 1e9)

    async def sleep(self, delay_s: float) -> None:
        self.advance(max(0.0, delay_s))
        await asyncio.sleep(0)


def iso(time_ns: int) -> str:
    """ISO-8601 UTC text of a Unix time in nanoseconds, with milliseconds."""
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
