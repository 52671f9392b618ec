"""Numbers of threads for computing, as written in settings and as resolved on a machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

ALL: Final = 0
"""A number of threads that stands for one thread per processor available to the process."""


def threads_of(requested: int) -> int:
    """Returns the requested number of threads, with `ALL` resolved on this machine."""
    if requested != ALL:
        return requested
    # In a container or under taskset a process may have fewer processors than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most(requested: Iterable[int]) -> int:
    """Returns the largest of several numbers of threads; `ALL` counts as the largest. Raises ValueError without a
    number.
    """
    numbers = list(requested)
    return ALL if ALL in numbers else max(numbers)
