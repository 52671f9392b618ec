"""The limit of files and connections that a process may have open at once."""

from __future__ import annotations

import resource
from typing import Final

WANTED: Final = 65_536
"""Limit sufficient for every bound in `limits`; not more, because some programs iterate over all descriptors."""


def raise_open_files(desired: int = WANTED) -> int:
    """Raises the process's soft limit up to `desired`, as far as the hard limit allows; returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # a sandbox may forbid even that
            return soft
        return target
    return open_files()


def open_files() -> int:
    """Returns the maximum number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
