"""A clock that a test sets forward, so that what ended now ended long ago."""

from __future__ import annotations

from rftd.ops.clock import SystemClock


class MovedClock(SystemClock):
    """The machine's clock, set forward by a test."""

    ahead_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + round(self.ahead_s * 1e9)
