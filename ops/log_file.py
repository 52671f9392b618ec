"""Size-bounded files of a process: `LogFile` for log lines, `OwnOutput` for standard error."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from threading import Lock

from rftd.ops import limits

STANDARD_ERROR = 2
"""Descriptor of standard error."""


class LogFile:
    """A log file private to the current user. A line may be lost: no process fails for an unwritable log."""

    def __init__(self, path: Path, *, size_max_bytes: int = limits.DAEMON_LOG_SIZE_BYTES) -> None:
        """File and folder are created with the first line."""
        self._path = path
        self._size_max_bytes = size_max_bytes
        self._descriptor = -1
        # Threads log, too: two threads with a full file would both rotate.
        self._lock = Lock()

    @property
    def older(self) -> Path:
        """Path of the previous, rotated file, replaced at each rotation."""
        return older_of(self._path)

    def write(self, line: str) -> None:
        """Appends a line, which must not contain a line feed."""
        encoded = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock, suppress(OSError):
            if not self._is_open():
                self._open()
            if os.fstat(self._descriptor).st_size + len(encoded) > self._size_max_bytes:
                os.replace(self._path, self.older)
                self._open()
            os.write(self._descriptor, encoded)  # one write: with O_APPEND, lines of two processes do not mix

    def close(self) -> None:
        """Closes the file and frees its descriptor; the next line reopens the file."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    def _is_open(self) -> bool:
        """True if the path still names the open file: logrotate, or another process, may have moved the file."""
        if self._descriptor < 0:
            return False
        try:
            at_path = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        open_status = os.fstat(self._descriptor)
        return (at_path.st_dev, at_path.st_ino) == (open_status.st_dev, open_status.st_ino)

    def _open(self) -> None:
        """Opens the file for appending, in a private folder, and never through a link."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not through a link, which somebody may have placed there to have another file written.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor


def older_of(path: Path) -> Path:
    """Returns the path of the rotated predecessor of the file at `path`."""
    return path.with_name(f"{path.name}.1")


class OwnOutput:
    """The file to which the owner redirected standard error, kept within a size; any other output is left unchanged."""

    def __init__(
        self,
        name: str,
        *,
        descriptor: int = STANDARD_ERROR,
        size_max_bytes: int = limits.WORKER_LOG_SIZE_BYTES,
        kept_bytes: int = limits.WORKER_LOG_KEPT_BYTES,
    ) -> None:
        """Refers to the file behind `descriptor`: `trim` keeps the last `kept_bytes` of one above `size_max_bytes`, and
        touches no file with another name than `name`.
        """
        self._name = name
        self._descriptor = descriptor
        self._size_max_bytes = size_max_bytes
        self._kept_bytes = kept_bytes

    @property
    def full(self) -> bool:
        """True if the file exceeds its maximum size and was opened for appending, so that it can be truncated."""
        try:
            status = os.fstat(self._descriptor)
            appends = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_APPEND
        except OSError:
            return False
        # A process not appending would continue at the old offset, behind a hole as large as the removed part.
        return stat.S_ISREG(status.st_mode) and bool(appends) and status.st_size > self._size_max_bytes

    def trim(self) -> None:
        """Copies the end of a full file to the older file, and truncates the file. A line written meanwhile may be
        lost.
        """
        # Truncated and not renamed: engines and child processes hold the file open, and would fill the renamed file.
        try:
            path = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
            if path.name != self._name or not self.full:
                return
            # Even without space for the moved end: the disk may be full because of the file.
            with suppress(OSError):
                older_of(path).write_bytes(self._end_of(path))
            os.ftruncate(self._descriptor, 0)
        except OSError:
            return  # no /proc, or the file is gone

    def _end_of(self, path: Path) -> bytes:
        """Returns the last `kept_bytes` of a file, from the beginning of a line."""
        with path.open("rb") as file:
            file.seek(-self._kept_bytes, os.SEEK_END)
            end = file.read(self._kept_bytes)
        return end[end.find(b"\n") + 1 :]
