"""Files and folders that survive a power cut: a file is safe once bytes and all parent folders are synced."""

from __future__ import annotations

import os
from pathlib import Path


def make_durable_folder(folder: Path) -> None:
    """Creates the folder and all parents, safe against a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # A new name belongs to the parent: fsync of the folder preserves content, but not existence.
    for path in missing:
        sync_folder(path.parent)


def write_durable(path: Path, content: bytes) -> None:
    """Writes the file atomically and durably; the folder must exist."""
    temporary = path.with_name(
        f".{path.name}.tmp"
    )  # in the same folder: a rename is atomic only within one file system
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()  # from Python's buffer to the kernel, then from the kernel to the disk
        os.fsync(file.fileno())
    # Only now: a file system may make the new name durable before the bytes, and leave an empty file.
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the names in the folder to the disk, so that creations and renames survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
