"""`GilYield`: pauses a saturated event loop briefly, so that the log's threads get Python's global lock (GIL).

Without pauses the GIL starves the threads: a loop with constant work releases it only around `select`, takes it back
before a waiting thread wakes up, and resets the thread's claim. Measured with a loop at 100 %: commits of seconds
instead of milliseconds. A shorter switch interval does not help: each `select` makes a waiting thread count anew.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final

CALM_INTERVAL_S: Final = 0.005
"""Seconds of waiting before the first check; most waits are shorter, and a check costs a turn of the loop."""
SATURATED_INTERVAL_S: Final = 0.001
"""Seconds between two pauses of a saturated loop."""
PAUSE_S: Final = 0.0001
"""Length of a pause in seconds: the loop loses at most a tenth of the interval."""
SATURATED: Final = 0.7
"""Share of the loop's time spent computing from which the loop counts as saturated."""


class GilYield:
    """A context around waiting for a thread: a saturated event loop pauses 0.1 ms in each 1 ms, an unsaturated one
    never.
    """

    def __init__(self) -> None:
        """Begins on the running event loop, with no wait."""
        self._loop = asyncio.get_running_loop()
        self._waits = 0
        self._scheduled = False
        self._wall_s = self._cpu_s = 0.0

    def __enter__(self) -> None:
        """Counts a wait; the first one starts the checks of the loop."""
        self._waits += 1
        if not self._scheduled:
            self._schedule(CALM_INTERVAL_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Counts the end of a wait."""
        self._waits -= 1

    def _schedule(self, interval_s: float) -> None:
        """Schedules the next check, and remembers the present times for it."""
        self._scheduled = True
        self._wall_s = time.monotonic()
        self._cpu_s = time.thread_time()  # of this thread alone: the log's own threads must not make the loop look busy
        self._loop.call_later(interval_s, self._check)

    def _check(self) -> None:
        """Pauses the loop if it was saturated since the last check; ends the checks if nothing waits."""
        self._scheduled = False
        if not self._waits:
            return
        saturated = time.thread_time() - self._cpu_s > SATURATED * (time.monotonic() - self._wall_s)
        if saturated:
            time.sleep(PAUSE_S)  # blocks the loop on purpose: nothing shorter hands the lock over
        self._schedule(SATURATED_INTERVAL_S if saturated else CALM_INTERVAL_S)
