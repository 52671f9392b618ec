"""`Disk`: the free space of volumes, and the space that folders take up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

_BLOCK_SIZE_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's own block size is."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a file system."""

    size_bytes: int
    free_bytes: int
    """The free space for this user, without what is held back for root."""


class Disk(Protocol):
    """The file systems that files are written to. Calls block, and raise OSError if one does not answer."""

    def volume(self, folder: Path) -> Volume:
        """The file system that `folder` lies on, or would."""
        ...

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """The space that the files below `folders` take up, each counted once."""
        ...


class LocalDisk:
    """The file systems of this machine."""

    def volume(self, folder: Path) -> Volume:
        """See `Disk.volume`."""
        # The folder may be yet to be made: the nearest one above it that is there lies on the same file system.
        status = os.statvfs(nearest(folder))
        # In units of f_frsize; f_bsize is only the size that the file system likes to be read in.
        return Volume(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """See `Disk.used_bytes`. What vanishes meanwhile is not counted; links are not followed."""
        seen: set[tuple[int, int]] = set()
        return sum(_used_bytes(str(folder), seen) for folder in folders)


def nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there, as far as this user can see."""
    # Not Path.exists: it raises where a folder above may not be passed.
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


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
    key = (status.st_dev, status.st_ino)
    if key in seen:  # a hard link, or a folder below another one of those that were asked for
        return 0
    seen.add(key)
    below = _used_bytes(entry.path, seen) if entry.is_dir(follow_symlinks=False) else 0
    # Blocks, not the file's length: a sparse file takes up less.
    return status.st_blocks * _BLOCK_SIZE_BYTES + below
