"""Files and folders that survive a power cut: a file is safe once its bytes and the folders above it are synced."""

from __future__ import annotations

import os
from pathlib import Path


def make_durable_folder(folder: Path) -> None:
    """Makes the folder and its parents so that they survive a power cut."""
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # A new name lies in its parent: fsync of the folder itself keeps what is in it, and not that it is there.
    for part in missing:
        sync_folder(part.parent)


def write_durable(path: Path, data: bytes) -> None:
    """Writes the file, whole or not at all, and durable when this returns. Its folder must be there."""
    temporary = path.with_name(f".{path.name}.tmp")  # beside it: a rename is atomic within one file system only
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()  # Python's buffer to the kernel, then the kernel's to the disk
        os.fsync(file.fileno())
    # Only now: a file system may make the new name durable before the bytes, and leave an empty file in its place.
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
