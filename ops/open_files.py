"""The number of files and connections that a process may have open at once."""

from __future__ import annotations

import resource
from typing import Final

WANTED: Final = 65_536
"""Enough for every bound in `limits`. No more: some programs walk over all numbers up to the limit."""


def raise_open_files(wanted: int = WANTED) -> int:
    """Raises the process's own limit as far as its hard limit lets it, up to `wanted`; the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # a sandbox may forbid even that
            return soft
        return target
    return open_files()


def open_files() -> int:
    """The most files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
