"""Folders whose names survive a power cut: a file is safe once its bytes and the folders above it are synced."""

from __future__ import annotations

import os
from pathlib import Path


def make_durable_folder(folder: Path) -> None:
    """Makes the folder and its parents so that they survive a power cut."""
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for part in missing:
        sync_folder(part.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
