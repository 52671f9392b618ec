"""`Disk`: what is free on the volumes, and what folders take up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

_BLOCK_SIZE_BYTES: Final = 512
"""Of `st_blocks`, whatever the file system's own is."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a file system."""

    size_bytes: int
    free_bytes: int
    """For this user; what is held back for root is not."""


class Disk(Protocol):
    """Where files go. Both calls block, and raise OSError if the file system does not answer."""

    def volume(self, folder: Path) -> Volume:
        """The file system that `folder` lies on, or would."""
        ...

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """What the files below `folders` take up, each once."""
        ...


class LocalDisk:
    """The file systems of this machine."""

    def volume(self, folder: Path) -> Volume:
        """See `Disk.volume`."""
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        status = os.statvfs(there)
        return Volume(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """See `Disk.used_bytes`. What vanishes meanwhile is not counted; links are not followed."""
        seen: set[tuple[int, int]] = set()
        return sum(_used_bytes(str(folder), seen) for folder in folders)


def _used_bytes(folder: str, seen: set[tuple[int, int]]) -> int:
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += _entry_bytes(entry, seen)
    except OSError:
        return total
    return total


def _entry_bytes(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    if (key := (status.st_dev, status.st_ino)) in seen:
        return 0
    seen.add(key)
    below = _used_bytes(entry.path, seen) if entry.is_dir(follow_symlinks=False) else 0
    return status.st_blocks * _BLOCK_SIZE_BYTES + below
