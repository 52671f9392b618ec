"""`held`: one process at a time, by a lock on a file."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rftd.ops.errors import WaitTimeoutError

_INTERVAL_S: Final = 0.05


@contextmanager
def held(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Holds the lock of `path` while the block runs; the kernel frees it if the process dies.

    Raises WaitTimeoutError if another process keeps it for longer than `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise WaitTimeoutError(
                        f"another process has held this lock for {timeout_s:.0f} s",
                        where=str(path),
                        fix="wait for the other `rftd stack`, or end it",
                    ) from None
                time.sleep(_INTERVAL_S)
        yield
    # Closing frees the lock. The file stays: removed, a third process could lock a new one beside a second that waits
    # on this one.
    finally:
        os.close(file)
