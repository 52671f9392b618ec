"""Turns for the log's threads while the event loop is saturated.

Python's lock starves them otherwise: a loop that always has something to do lets go of it only around `select`, takes
it back before a waiting thread wakes up, and resets that thread's claim. Measured with a loop at 100 %: commits of
seconds instead of milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final

INTERVAL_S: Final = 0.001
PAUSE_S: Final = 0.0001
SATURATED: Final = 0.7
"""Share of an interval that the loop's thread computed."""


class Breather:
    """`with breather:` around a wait for a thread: the saturated loop pauses 0.1 ms in each 1 ms; an idle one never."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits = 0
        self._scheduled = False
        self._wall_s = self._cpu_s = 0.0

    def __enter__(self) -> None:
        self._waits += 1
        if not self._scheduled:
            self._schedule()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits -= 1

    def _schedule(self) -> None:
        self._scheduled = True
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()
        self._loop.call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        self._scheduled = False
        if not self._waits:
            return
        if time.thread_time() - self._cpu_s > SATURATED * (time.monotonic() - self._wall_s):
            time.sleep(PAUSE_S)  # blocks the loop on purpose: nothing shorter hands the lock over
        self._schedule()
