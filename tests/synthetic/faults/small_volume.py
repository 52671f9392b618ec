"""A folder that is a small file system of its own, which really fills up, and really becomes read-only.

Only root can mount one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_BLOCK_BYTES = 4096


class SmallVolume:
    """A mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *, free_bytes: int = 0) -> None:
        """Leaves so many bytes free, rounded down to blocks."""
        self.empty()
        spare = free_bytes // _BLOCK_BYTES
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(_BLOCK_BYTES))
        with self._ballast.open("r+b") as file:
            file.truncate(max(0, file.seek(0, os.SEEK_END) - spare * _BLOCK_BYTES))

    def empty(self) -> None:
        """Frees what `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Whoever opens a file below the folder from now on may only read it."""
        _mount("--bind", str(self.folder), str(self.folder))
        _mount("-o", "remount,ro,bind", str(self.folder))

    def make_writable(self) -> None:
        """Ends `make_read_only`."""
        subprocess.run(["umount", str(self.folder)], check=True)


@contextmanager
def small_volume(folder: Path, size_bytes: int) -> Iterator[SmallVolume]:
    """A new folder of this size while the block runs. Skips the test where nobody may mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    try:
        yield SmallVolume(folder)
    finally:
        while os.path.ismount(folder):
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
