"""`Usage`: the memory and the processor time of a worker's processes, as its heartbeats tell them."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import psutil

CHILDREN_S: Final = 30.0
"""The time between two looks for processes that were started meanwhile: a look reads all of the machine's."""


class Used(msgspec.Struct, frozen=True):
    """The memory and the processor time of some processes."""

    memory_bytes: int
    cpu_s: float


UNTOLD: Final = Used(0, 0.0)


class Usage:
    """The figures of this process and of those that it started: ranks, engines, judges of rewards."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._all = [self._own]
        self._looked_s = -math.inf

    def used(self, now_s: float) -> Used:
        """Their memory and processor time at this moment of a monotonic clock."""
        if now_s - self._looked_s >= CHILDREN_S:
            self._all = [self._own, *self._own.children(recursive=True)]
            self._looked_s = now_s
        memory_bytes = 0
        cpu_s = 0.0
        for each in self._all:
            try:
                with each.oneshot():
                    times = each.cpu_times()
                    memory_bytes += each.memory_info().rss
                    cpu_s += times.user + times.system
            except psutil.Error:
                continue  # it has ended
        return Used(memory_bytes, cpu_s)
