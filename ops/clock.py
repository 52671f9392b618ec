"""`Clock`, the source of time passed to services, and its texts. Only short waits within one process, as for a thread
or an answer, read `time.monotonic` themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for waits, and sleeping."""

    def now_ns(self) -> int:
        """Returns Unix time in nanoseconds; for display, deadlines and `decided_at`, never for safety."""
        ...

    def monotonic_s(self) -> float:
        """Returns seconds since an arbitrary start, never going backwards."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Returns after `delay_s` seconds of the clock; other tasks run meanwhile."""
        ...


class SystemClock:
    """The machine's clock, for everything outside of tests and simulations."""

    def now_ns(self) -> int:
        """Returns the machine's Unix time in nanoseconds."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Returns after `delay_s` seconds; other tasks run meanwhile."""
        await asyncio.sleep(delay_s)


class RecordedClock:
    """A clock for recorded decisions: max(wall, last recorded reading + monotonic time since).

    A wall clock set back, or forward and then back, therefore prolongs no wait: time advances from the last recorded
    reading at the real pace. A clock set forward may end a wait early.
    """

    def __init__(self, clock: Clock, recorded_ns: Callable[[], int]) -> None:
        """`recorded_ns` returns the last reading in the log as read so far; 0 without one."""
        self._clock = clock
        self._recorded_ns = recorded_ns
        self._ahead_ns: int | None = None
        """The largest lead of a recorded reading over the monotonic clock, at the moment when it was first read."""

    def now_ns(self) -> int:
        """Returns the machine's Unix time, or later, by the last recorded reading; in nanoseconds."""
        passed_ns = int(self._clock.monotonic_s() * 1e9)
        # The largest lead is kept: a late reading must not set time back.
        if recorded_ns := self._recorded_ns():
            ahead_ns = recorded_ns - passed_ns
            self._ahead_ns = ahead_ns if self._ahead_ns is None else max(self._ahead_ns, ahead_ns)
        wall_ns = self._clock.now_ns()
        return wall_ns if self._ahead_ns is None else max(wall_ns, passed_ns + self._ahead_ns)

    def monotonic_s(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return self._clock.monotonic_s()

    async def sleep(self, delay_s: float) -> None:
        """Returns after `delay_s` seconds; other tasks run meanwhile."""
        await self._clock.sleep(delay_s)


class ManualClock:
    """A test clock, moved by `advance`, or by sleeping on it."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        """Begins at the wall time `start_ns`; the monotonic time begins at the same number of seconds."""
        self._now_ns = start_ns
        self._set_ns = 0

    def now_ns(self) -> int:
        """Returns the simulated Unix time in nanoseconds."""
        return self._now_ns + self._set_ns

    def monotonic_s(self) -> float:
        """Returns the simulated monotonic time in seconds: `start_ns` and all advances, without the jumps of the wall
        clock.
        """
        return self._now_ns / 1e9  # without `_set_ns`: setting the wall clock does not move the monotonic one

    def advance(self, delay_s: float) -> None:
        """Moves the clock forward by `delay_s` seconds, without a real wait."""
        assert delay_s >= 0
        self._now_ns += int(delay_s * 1e9)

    def set_by(self, jump_s: float) -> None:
        """Changes the wall clock by `jump_s` seconds, forward or back; monotonic time stays the same."""
        self._set_ns += int(jump_s * 1e9)

    async def sleep(self, delay_s: float) -> None:
        """Advances the clock by `delay_s` seconds at once, and lets other tasks run."""
        self.advance(max(0.0, delay_s))
        await asyncio.sleep(
            0
        )  # yields to the loop, as every real sleep does: otherwise a loop of sleeps starves all other tasks


def iso(time_ns: int) -> str:
    """Returns the ISO-8601 UTC text of a Unix time in nanoseconds, with milliseconds."""
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_ns_of(text: str) -> int:
    """Returns the Unix time in nanoseconds of an ISO-8601 text with a time zone, exact to the microsecond. Raises
    ValueError.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    # In integers throughout: the seconds since 1970 as floats are 240 ns apart.
    passed = moment - datetime.fromtimestamp(0, UTC)
    return passed // timedelta(microseconds=1) * 1000
