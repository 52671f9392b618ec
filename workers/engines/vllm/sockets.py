"""`SocketFolder`: the folder in which vLLM's processes meet: it makes a socket for each engine, and removes none."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "VLLM_RPC_BASE_PATH"
"""The variable by which vLLM is told; it takes the folder of temporary files without it."""
PREFIX: Final = "rftd-vllm-"
_LOCK: Final = "lock"
_PATH_BYTES: Final = 107
"""The longest path that a socket may have."""
_NAMES_BYTES: Final = len("/") + len(PREFIX) + 8 + len("/") + 36
"""The characters that the folder's name and a socket's add to a path."""


class SocketFolder:
    """A folder of one engine, which is removed with it, or by the next engine if its process was killed.

    Its owner holds a lock in it, which the kernel frees when that ends, in whatever container it ran.
    """

    def __init__(self) -> None:
        """Makes it, and tells vLLM of it; removes those that nobody owns any more."""
        self._before = os.environ.get(VARIABLE)
        base = Path(self._before or tempfile.gettempdir())
        # Another engine of this process has one already: beside that, and not in it.
        self._base = base.parent if base.name.startswith(PREFIX) else base
        sweep(self._base)
        self._owned: tuple[Path, int] | None = None
        # Where its name is too long for sockets, vLLM's own place may do; where it cannot be made, vLLM says so.
        if len(os.fsencode(self._base)) + _NAMES_BYTES <= _PATH_BYTES:
            with suppress(OSError):
                self._owned = _made(self._base)
        if self.path is not None:
            os.environ[VARIABLE] = str(self.path)

    @property
    def path(self) -> Path | None:
        """The folder; None once it is closed, and where there is none."""
        return self._owned[0] if self._owned is not None else None

    def close(self) -> None:
        """Removes it; idempotent. Sockets that are open stay so, and nobody else can reach them."""
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
    """Removes the folders below `base` whose owners are gone."""
    for path in base.glob(f"{PREFIX}*"):
        # One without a lock is being made, or being removed.
        with suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _made(base: Path) -> tuple[Path, int]:
    """A new folder, and its lock. Raises OSError."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # between the two calls somebody took it for one that nobody owns
