"""The heap of a process that runs for weeks: cyclic garbage, looked for seldom, and memory that goes back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from functools import cache
from typing import ClassVar, Final

from rftd.ops.clock import Clock

PYTHONS_THRESHOLDS: Final = (700, 10, 10)
"""The thresholds of `gc` when Python starts."""
_READS: Final = "_read_ready_cb"
"""The attribute of asyncio's transports that holds the method which reads."""
_M_ARENA_MAX: Final = -8  # the numbers of glibc's malloc.h
_ARENAS: Final = 2
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_SIZE_BYTES: Final = 256 * 1024
"""The size from which on a block is mapped by itself, and unmapped when it is freed."""
_WORTH_TRIMMING_BYTES: Final = 64 * 1024**2
"""The freed memory that the C library may keep, for the process soon uses that much again."""
_TRIMMED_EVERY_S: Final = 60.0
_DAEMON_KEEPS_BYTES: Final = 8 * 1024**2
"""The freed memory of a process that keeps much and uses little for a moment: what lies free comes from a rush."""


@cache
def _c_library() -> ctypes.CDLL:
    """The C library, opened once: what opens it again is a cycle of references."""
    return ctypes.CDLL(None)


def tune_collector() -> None:
    """Makes looks for cyclic garbage rare: folds keep hundreds of thousands of objects alive, with hardly a cycle."""
    gc.freeze()  # modules and classes live as long as the process: no look at them finds anything
    # A full collection walks every object that is alive, with the event loop and the log's threads standing still. Not
    # rarer: of connections of seconds one in ten outlives both younger generations, and waits for it with its buffers.
    gc.set_threshold(50_000, 20, 10)


def release(transport: asyncio.BaseTransport | None) -> None:
    """Ends the cycle of references that a closed socket's transport is in: it keeps a bound method of its own.

    Python does so itself since 3.12, unless the connection was aborted. In a process that looks for cycles seldom,
    connections that have ended would wait for it with their buffers.
    """
    if getattr(transport, _READS, None) is not None:
        setattr(transport, _READS, None)


def beneath(transport: asyncio.BaseTransport) -> asyncio.BaseTransport:
    """The transport of the socket that an encrypted transport uses; any other is its own."""
    return getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport


def tune_allocator() -> None:
    """Lets freed memory go back to the system, where the C library has such settings; before threads are started.

    By default each thread has an arena of its own that keeps the most that it ever held, SQLite's pages for one, and
    what is "large" grows with use, until the buffers of one page of an API's answer leave holes that nothing fits in.
    """
    mallopt = getattr(_c_library(), "mallopt", None)  # glibc has it; musl and macOS do not
    if mallopt is not None:
        # The second setting also ends glibc's own raising of that threshold after each large block that is freed.
        mallopt(_M_ARENA_MAX, _ARENAS)
        map_large_blocks(_MAPPED_SIZE_BYTES)


def map_large_blocks(size_bytes: int) -> None:
    """Has blocks from this size on mapped by themselves: freed, they are the system's at once.

    glibc keeps those below 32 MiB otherwise, with holes between the ones that stay. Mapping costs time: the system
    clears every page again.
    """
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size_bytes)


_HEAP_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _HEAP_FIELDS]


def give_back(least_bytes: int = _WORTH_TRIMMING_BYTES) -> None:
    """Returns freed memory to the system where the C library keeps at least this much of it."""
    library = _c_library()
    heap = getattr(library, "mallinfo2", None)  # glibc since 2.33; musl and macOS have none
    if heap is None:
        return
    heap.restype = _Heap
    if heap().fordblks >= least_bytes:
        library.malloc_trim(0)


async def keep_trimmed(clock: Clock) -> None:
    """Returns freed memory to the system again and again, until cancelled.

    Records, answers and connections come in rushes, and each leaves holes between the blocks that stay.
    """
    while True:
        await clock.sleep(_TRIMMED_EVERY_S)
        await asyncio.to_thread(give_back, _DAEMON_KEEPS_BYTES)
