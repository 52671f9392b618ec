"""`Usage`: the memory and the processor time of a worker's processes, as reported by heartbeats."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import psutil

CHILDREN_S: Final = 30.0
"""Seconds between two searches for new children: a search reads all processes of the machine."""


class Used(msgspec.Struct, frozen=True):
    """Resident memory in bytes and processor time in seconds, summed over processes."""

    memory_bytes: int
    cpu_s: float


NO_USAGE: Final = Used(0, 0.0)
"""The figures reported for a worker running inside a process with other work."""


class Usage:
    """Measures memory and processor time of the current process and its children: ranks, engines, reward judges."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._all = [self._own]
        self._looked_s = -math.inf

    def used(self, now_s: float) -> Used:
        """Returns memory and processor time summed over all running processes; `now_s` is monotonic time, and decides
        when to search for new children.
        """
        if now_s - self._looked_s >= CHILDREN_S:
            self._all = [self._own, *self._own.children(recursive=True)]
            self._looked_s = now_s
        memory_bytes = 0
        cpu_s = 0.0
        for process in self._all:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory_bytes += process.memory_info().rss
                    cpu_s += times.user + times.system
            except psutil.Error:
                continue  # it has ended
        return Used(memory_bytes, cpu_s)
