"""The number of threads that a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

ALL: Final = 0
"""Stands for as many threads as this process has processors."""


def threads_of(asked: int) -> int:
    """The number that was asked for, `ALL` counted out on this machine."""
    if asked != ALL:
        return asked
    # In a container or under taskset a process may have fewer processors than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most(asked: Iterable[int]) -> int:
    """The largest of several such numbers; `ALL` is the largest of all."""
    given = list(asked)
    return ALL if ALL in given else max(given)
