"""`RowFile`: one open file of rows, in any format."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rftd.ops import limits
from rftd.ops.errors import DataError


class FileStamp(NamedTuple):
    """Size, modification time, inode and status-change time of a file; any write changes at least one of them."""

    size_bytes: int
    """Size in bytes."""
    written_ns: int
    """Modification time in nanoseconds."""
    inode: int
    """Number of the inode."""
    changed_ns: int
    """Status-change time in nanoseconds."""


class RowFile(ABC):
    """An open file of rows; it stays open, so that replacing the file on disk does not change a running experiment's
    rows.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises DataError."""
        self.path = path
        try:
            self._handle = path.open("rb", buffering=limits.MIB)
        except OSError as error:
            raise DataError(f"taskset file cannot be opened: {error.strerror}", where=str(path)) from error
        self.stamp = self.present_stamp()
        """Stamp of the file at its opening, or at the last computation of the taskset's digest."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of rows in use."""

    @abstractmethod
    def row(self, index: int) -> dict[str, Any]:
        """Returns the object on row `index` of this file, from 0. Raises DataError if it cannot be read any more."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Returns the location of a row for error messages: file and line, or file and row."""

    def present_stamp(self) -> FileStamp:
        """Returns the size and times of the open file at this moment."""
        status = os.fstat(self._handle.fileno())
        return FileStamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    @property
    def touched(self) -> bool:
        """True if the open file was written, or its times changed, since `stamp` was read."""
        # Not the time of a change: a new link to the file, or a new name, would count as one.
        return self.stamp[:2] != self.present_stamp()[:2]

    def chunks(self) -> Iterator[bytes]:
        """Yields the bytes of the open file as they are now, a mebibyte at a time."""
        offset = 0
        while chunk := os.pread(self._handle.fileno(), limits.MIB, offset):
            yield chunk
            offset += len(chunk)

    def close(self) -> None:
        """Closes the file; rows cannot be read afterwards. Idempotent."""
        self._handle.close()
