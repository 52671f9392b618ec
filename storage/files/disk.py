"""`Disk`: the free space of volumes, and the space used by folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

_BLOCK_SIZE_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's own block size."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A reading of a file system's size and free space."""

    size_bytes: int
    """Size of the file system."""
    free_bytes: int
    """Free space for this user, without the reserve for root."""


class Disk(Protocol):
    """File systems as seen by writers of files. Calls block, and raise OSError if a file system does not answer."""

    def volume(self, folder: Path) -> Volume:
        """Returns size and free space of the file system of `folder`, which need not exist yet."""
        ...

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """Returns the space used by the files below `folders`, counting hard links once."""
        ...


class LocalDisk:
    """The local file systems, measured through `statvfs` and a walk over folders."""

    def volume(self, folder: Path) -> Volume:
        """See `Disk.volume`."""
        # The folder may not exist yet: the nearest existing parent lies on an equal file system.
        status = os.statvfs(nearest(folder))
        # In units of f_frsize; f_bsize is only the preferred size of reads.
        return Volume(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)

    def used_bytes(self, folders: Sequence[Path]) -> int:
        """See `Disk.used_bytes`. Files that vanish meanwhile are not counted; links are not followed."""
        counted: set[tuple[int, int]] = set()
        return sum(_folder_bytes(str(folder), counted) for folder in folders)


def nearest(folder: Path) -> Path:
    """Returns the folder, or the nearest existing parent visible to the user."""
    # Not Path.exists: which raises for an inaccessible parent folder.
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def _folder_bytes(folder: str, counted: set[tuple[int, int]]) -> int:
    """Returns the disk space, in bytes, of everything below a folder and not yet in `counted`; unreadable entries count
    as 0.
    """
    total = 0
    try:
        with os.scandir(folder) as children:
            for child in children:
                total += _entry_bytes(child, counted)
    except OSError:
        return total
    return total


def _entry_bytes(child: os.DirEntry[str], counted: set[tuple[int, int]]) -> int:
    """Returns the disk space, in bytes, of an entry with its content, and adds the entry to `counted`; 0 if already
    there or unreadable.
    """
    try:
        status = child.stat(follow_symlinks=False)
    except OSError:
        return 0
    key = (status.st_dev, status.st_ino)
    if key in counted:  # a hard link, or a folder below another one of the requested folders
        return 0
    counted.add(key)
    below = _folder_bytes(child.path, counted) if child.is_dir(follow_symlinks=False) else 0
    # Blocks, not the file's length: a sparse file uses less space.
    return status.st_blocks * _BLOCK_SIZE_BYTES + below
