"""`exchange`: atomic exchange of two names in a file system, without a moment of a missing name."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_WORKING_FOLDER: Final = -100
"""AT_FDCWD: relative paths are relative to the process's folder."""
_EXCHANGE: Final = 2
"""Linux's flag for the exchange of two names."""
# A kernel before 3.15, an unsupported file system, or a container forbidding the call: callers then rename twice.
_UNKNOWN: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
"""Errors of systems without the exchange."""


def exchange(first: Path, second: Path) -> bool:
    """Swaps two files or folders. Returns False, without any change, if unsupported by the system or the file system.

    Raises FileNotFoundError, without any change, for a missing file.
    """
    call = _renameat2()
    if call is None:
        return False
    if call(_WORKING_FOLDER, os.fsencode(first), _WORKING_FOLDER, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Returns the C library's renameat2; None where it is missing."""
    try:
        # `use_errno` keeps a copy of errno per thread: the real errno may belong to another call by the time of
        # reading.
        call: Callable[[int, bytes, int, bytes, int], int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return call
