"""What processes use: their number, memory, and files, read from /proc."""

from __future__ import annotations

import os
import resource
import stat
from contextlib import suppress

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

_PAGE: Final = resource.getpagesize()
"""Size of a memory page in bytes."""
_ENTRY_BYTES: Final = 1024
"""Counted for each file besides its blocks: names and inodes need space too."""


def descendants(pid: int) -> Iterator[tuple[int, int]]:
    """Yields pid and number of threads of a process's descendants."""
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        if parent != pid:
            yield parent, len(threads)
        for thread in threads:
            with suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as file:
                waiting += map(int, file.read().split())


def memory_of(pids: list[int], *, shared_once: bool = False) -> int:
    """Returns the resident bytes of processes; `shared_once` counts shared pages once, and takes much longer."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            if shared_once:
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
            else:
                with open(f"/proc/{pid}/statm") as file:
                    total += int(file.read().split()[1]) * _PAGE
    return total


def disk_of(folders: list[str], pids: list[int]) -> int:
    """Returns the bytes of files in folders, and of files without a name kept open by processes."""
    total = 0
    waiting = list(folders)
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512 + _ENTRY_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    nameless = set()
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")
                    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                        nameless.add((status.st_dev, status.st_ino, status.st_blocks * 512))
    return total + sum(size for _, _, size in nameless)
