"""The heap of a process that runs for weeks: cyclic garbage, looked for seldom, and memory that goes back."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_SIZE_BYTES: Final = 256 * 1024


def tune_collector() -> None:
    """Looks for cyclic garbage seldom: folds keep hundreds of thousands of objects alive and make hardly a cycle."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def tune_allocator() -> None:
    """Lets freed memory go back to the system, where the C library has such settings; before threads are started.

    By default each thread has an arena of its own that keeps the most that it ever held, SQLite's pages for one, and
    what is "large" grows with use, until the buffers of one page of an API's answer leave holes that nothing fits in.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_SIZE_BYTES)
