"""`OwnOutput`: the file that a process's output goes to, kept small; whatever it has started may write there, too."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from rftd.ops import limits
from rftd.ops.log_file import older_of

STANDARD_ERROR = 2


class OwnOutput:
    """The file behind standard error, if it has the name that its owner gave it: no other file is touched."""

    def __init__(
        self,
        name: str,
        *,
        descriptor: int = STANDARD_ERROR,
        size_max_bytes: int = limits.WORKER_LOG_SIZE_BYTES,
        kept_bytes: int = limits.WORKER_LOG_KEPT_BYTES,
    ) -> None:
        self._name = name
        self._descriptor = descriptor
        self._size_max_bytes = size_max_bytes
        self._kept_bytes = kept_bytes

    @property
    def full(self) -> bool:
        """True if it is too large by now."""
        try:
            status = os.fstat(self._descriptor)
            appends = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_APPEND
        except OSError:
            return False
        # Who does not append would go on where it was, behind a hole as large as what was cut off.
        return stat.S_ISREG(status.st_mode) and bool(appends) and status.st_size > self._size_max_bytes

    def trim(self) -> None:
        """Moves its end to the older file, and begins it anew. A line that is written meanwhile may be lost."""
        # Emptied and not renamed: engines and programs that were started hold it open, and would fill the renamed one.
        try:
            path = Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
            if path.name != self._name or not self.full:
                return
            # Also without space for its end: what fills the disk may be this file.
            with suppress(OSError):
                older_of(path).write_bytes(self._end_of(path))
            os.ftruncate(self._descriptor, 0)
        except OSError:
            return  # no /proc, or the file is gone

    def _end_of(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(-self._kept_bytes, os.SEEK_END)
            end = file.read(self._kept_bytes)
        return end[end.find(b"\n") + 1 :]
