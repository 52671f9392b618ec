"""The heap of a process that runs for weeks: rare collections of cyclic garbage, and return of freed memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from functools import cache
from typing import ClassVar, Final

from rftd.ops.clock import Clock

PYTHONS_THRESHOLDS: Final = (700, 10, 10)
"""The default thresholds of `gc`."""
_READS: Final = "_read_ready_cb"
"""Name of the attribute of asyncio's transports that holds their bound read method."""
_M_ARENA_MAX: Final = -8  # numbers from glibc's malloc.h
"""Parameter of `mallopt`: the maximum number of arenas."""
_ARENAS: Final = 2
"""Maximum number of glibc's arenas."""
_M_MMAP_THRESHOLD: Final = -3
"""glibc's option for the size from which memory is mapped separately."""
_MAPPED_SIZE_BYTES: Final = 256 * 1024
"""Minimum size of a block that is mapped separately, and unmapped when freed."""
_WORTH_TRIMMING_BYTES: Final = 64 * 1024**2
"""Freed memory left to the C library, because the process soon needs as much again."""
_TRIMMED_EVERY_S: Final = 60.0
"""Seconds between two returns of freed memory."""
_DAEMON_KEEPS_BYTES: Final = 8 * 1024**2
"""Freed memory left to the C library in a daemon, with much live memory and short bursts: memory freed by a burst is
not needed soon.
"""


@cache
def _c_library() -> ctypes.CDLL:
    """Returns the C library, opened once: each opening creates a reference cycle."""
    return ctypes.CDLL(None)


def tune_collector() -> None:
    """Makes collections of cyclic garbage rare: folds keep hundreds of thousands of objects alive, with few cycles."""
    gc.freeze()  # modules and classes live as long as the process: examining them is useless
    # A full collection walks every live object while the event loop and the log's threads stand still. Not rarer: a
    # tenth of the connections lasting seconds survive both younger generations, and wait for the full collection with
    # all buffers.
    gc.set_threshold(50_000, 20, 10)


def release(transport: asyncio.BaseTransport | None) -> None:
    """Breaks the reference cycle of a closed socket's transport, caused by a stored bound method.

    Python does so itself since 3.12, unless the connection was aborted. With rare collections, ended connections would
    otherwise wait with all buffers.
    """
    if getattr(transport, _READS, None) is not None:
        setattr(transport, _READS, None)


def beneath(transport: asyncio.BaseTransport) -> asyncio.BaseTransport:
    """Returns the socket transport beneath an encrypted transport; any other transport unchanged."""
    return getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport


def tune_allocator() -> None:
    """Makes glibc return freed memory to the system; no effect with other C libraries. To be called before threads are
    started.

    By default each thread has an arena at peak size, for example with SQLite's pages, and the threshold for "large"
    blocks grows with use, until the buffers of an API's answer leave useless holes.
    """
    mallopt = getattr(_c_library(), "mallopt", None)  # present in glibc; absent in musl and macOS
    if mallopt is not None:
        # The second setting also stops glibc from raising the threshold after each free of a large block.
        mallopt(_M_ARENA_MAX, _ARENAS)
        map_large_blocks(_MAPPED_SIZE_BYTES)


def map_large_blocks(size_bytes: int) -> None:
    """Makes the C library map blocks from this size on separately, so that freeing them returns memory at once.

    Otherwise glibc keeps blocks below 32 MiB, with holes between the live ones. Mapping costs time: the system clears
    every page again.
    """
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size_bytes)


_HEAP_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
"""Fields of glibc's `struct mallinfo2`."""


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _HEAP_FIELDS]
    """Fields as required by ctypes."""


def give_back(least_bytes: int = _WORTH_TRIMMING_BYTES) -> None:
    """Returns freed memory to the system if the C library holds at least `least_bytes`."""
    library = _c_library()
    heap = getattr(library, "mallinfo2", None)  # glibc since 2.33; absent in musl and macOS
    if heap is None:
        return
    heap.restype = _Heap
    if heap().fordblks >= least_bytes:
        library.malloc_trim(0)


async def keep_trimmed(clock: Clock) -> None:
    """Returns freed memory to the system periodically, until cancelled.

    Records, answers and connections come in bursts, and each burst leaves holes between the live blocks.
    """
    while True:
        await clock.sleep(_TRIMMED_EVERY_S)
        await asyncio.to_thread(give_back, _DAEMON_KEEPS_BYTES)
