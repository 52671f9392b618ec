"""`KeptFile`: an append-only file of which only settled content counts after a kill."""

from __future__ import annotations

import os
from pathlib import Path

from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import DataError


class KeptFile:
    """Appends bytes. Opening cuts off everything written after the last `settle`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._size = 0

    @property
    def size(self) -> int:
        """The size in bytes, including unsettled content."""
        return self._size

    def open(self, size: int) -> None:
        """Opens the file and truncates to the settled size. Raises DataError for a shorter file."""
        self.close()
        make_durable_folder(self.path.parent)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        actual = os.fstat(self._file).st_size
        if actual < size:
            self.close()
            message = f"a tracker's file has {actual} bytes, and had {size}"
            fix = f"remove {self.path.parent.parent}: it is written once more"
            raise DataError(message, where=str(self.path), fix=fix)
        os.ftruncate(self._file, size)
        sync_folder(self.path.parent)
        self._size = size

    def append(self, content: bytes) -> None:
        """Appends the bytes at the current end, durable only after `settle`. Raises OSError."""
        view = memoryview(content)
        while view:
            count = os.pwrite(self._file, view, self._size)
            self._size += count
            view = view[count:]

    def settle(self) -> int:
        """Makes everything durable; returns the size of the file."""
        os.fsync(self._file)
        return self._size

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class KeptFiles:
    """The files of a tracker's runs, a file per role."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._files = {role: KeptFile(path) for role, path in paths.items()}

    def open(self, sizes: dict[str, int]) -> list[str]:
        """Opens every file at the settled size; returns the runs with a new file."""
        for role, file in self._files.items():
            file.open(sizes.get(role, 0))
        return [role for role, file in self._files.items() if not file.size]

    def append(self, role: str, content: bytes) -> None:
        """Appends the bytes to a run's file."""
        self._files[role].append(content)

    def settle(self) -> dict[str, int]:
        """Makes every file durable; returns the sizes."""
        return {role: file.settle() for role, file in self._files.items()}

    def close(self) -> None:
        """Closes every file; idempotent."""
        for file in self._files.values():
            file.close()
