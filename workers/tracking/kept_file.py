"""`KeptFile`: an append-only file, truncated on opening to the size last reported by `settle`."""

from __future__ import annotations

import os
from pathlib import Path

from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import DataError


class KeptFile:
    """A file that a tracker appends to. Bytes written after the last `settle` are removed at the next opening, to be
    written again.
    """

    def __init__(self, path: Path) -> None:
        """Names the file without opening it."""
        self.path = path
        self._file = -1
        """File descriptor; -1 if the file is not open."""
        self._size = 0
        """Present size of the file in bytes."""

    @property
    def size(self) -> int:
        """Size in bytes, including content written since the last `settle`."""
        return self._size

    def open(self, size: int) -> None:
        """Opens the file and truncates it to `size`, the last value returned by `settle`. Raises DataError if it is
        shorter.
        """
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
        """Appends the bytes, durable only after `settle`. Raises OSError."""
        view = memoryview(content)
        while view:
            count = os.pwrite(self._file, view, self._size)
            self._size += count
            view = view[count:]

    def settle(self) -> int:
        """Makes all content durable; returns the file's size, for the next `open`."""
        os.fsync(self._file)
        return self._size

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class KeptFiles:
    """The files of a tracker's runs, one for each role."""

    def __init__(self, paths: dict[str, Path]) -> None:
        """Names the files by role without opening them."""
        self._files = {role: KeptFile(path) for role, path in paths.items()}
        """The files by role."""

    def open(self, sizes: dict[str, int]) -> list[str]:
        """Opens every file, truncated to its size in `sizes` (0 if missing there); returns the roles whose file is
        empty.
        """
        for role, file in self._files.items():
            file.open(sizes.get(role, 0))
        return [role for role, file in self._files.items() if not file.size]

    def append(self, role: str, content: bytes) -> None:
        """Appends the bytes to the file of a role."""
        self._files[role].append(content)

    def settle(self) -> dict[str, int]:
        """Makes every file durable; returns the sizes by role, for the next `open`."""
        return {role: file.settle() for role, file in self._files.items()}

    def close(self) -> None:
        """Closes every file; idempotent."""
        for file in self._files.values():
            file.close()
