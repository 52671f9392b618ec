"""`SocketFolder`: the folder of vLLM's sockets, one for each engine process and none removed by vLLM."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "VLLM_RPC_BASE_PATH"
"""Environment variable for vLLM's socket folder; default: the folder of temporary files."""
PREFIX: Final = "rftd-vllm-"
"""Beginning of the folders' names."""
_LOCK: Final = "lock"
"""Name of the file locked by the folder's owner."""
_PATH_BYTES: Final = 107
"""Maximum length of a socket's path."""
_NAMES_BYTES: Final = len("/") + len(PREFIX) + 8 + len("/") + 36
"""Length added to a path by the names of the folder and a socket."""


class SocketFolder:
    """A folder of one engine, removed with the engine, or by the next engine if its process was killed.

    The owner holds a lock in the folder; the kernel releases the lock when the owner ends, in whatever container.
    """

    def __init__(self) -> None:
        """Creates the folder and sets VLLM_RPC_BASE_PATH; deletes folders without an owner."""
        self._before = os.environ.get(VARIABLE)
        base = Path(self._before or tempfile.gettempdir())
        # Another engine of this process already has a folder: create this one beside it, not inside.
        self._base = base.parent if base.name.startswith(PREFIX) else base
        sweep(self._base)
        self._owned: tuple[Path, int] | None = None
        # If the name would be too long for sockets, vLLM's default folder may do; if creation fails, vLLM reports it.
        if len(os.fsencode(self._base)) + _NAMES_BYTES <= _PATH_BYTES:
            with suppress(OSError):
                self._owned = _new_folder(self._base)
        if self.path is not None:
            os.environ[VARIABLE] = str(self.path)

    @property
    def path(self) -> Path | None:
        """Path of the folder; None once closed, or if none was created."""
        return self._owned[0] if self._owned is not None else None

    def close(self) -> None:
        """Removes the folder; idempotent. Open sockets stay open, unreachable for others."""
        if self._owned is None:
            return
        path, lock = self._owned
        if os.environ.get(VARIABLE) == str(path):
            if self._before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = str(self._base)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        self._owned = None


def sweep(base: Path) -> None:
    """Removes the folders below `base` without a living owner."""
    for path in base.glob(f"{PREFIX}*"):
        # A folder without a lock is being made or removed.
        with suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _new_folder(base: Path) -> tuple[Path, int]:
    """Creates a folder and locks it. Raises OSError."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # between the two calls another engine took it for ownerless
