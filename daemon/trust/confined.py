"""Paths that must lie below folders which the daemon's owner named: resolved, and free of links that lead out."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Final

_WILDCARD: Final = re.compile(r"[*?[]")
ENTRIES: Final = 20_000
"""The most entries of a folder that are looked at; one with more is taken for one that leads out."""


def confined(path: str, roots: Sequence[str]) -> str | None:
    """The real path, if it and all that it holds lie below a root and are plain files and folders; else None.

    A path that does not exist is taken for what it would be. Blocks.
    """
    if not path.startswith("/") or "\0" in path:
        return None
    real = os.path.realpath(path)
    if not _below(real, roots):
        return None
    # A link within a folder leads out of it just as well as the folder's own name, and so does one that a pattern of
    # files meets on its way.
    for number, entry in enumerate(_entries(_above_pattern(real))):
        if number >= ENTRIES or not _below(os.path.realpath(entry), roots) or not _is_plain(entry):
            return None
    return real


def real_roots(roots: Sequence[str]) -> tuple[str, ...]:
    """The roots as they are now, without those that are no folders or are links."""
    return tuple(root for root in roots if os.path.realpath(root) == os.path.abspath(root) and os.path.isdir(root))


def _below(real: str, roots: Sequence[str]) -> bool:
    return any(os.path.commonpath((root, real)) == root for root in real_roots(roots))


def _entries(real: str) -> Iterator[str]:
    """The path itself and everything in it; nothing for what is not there."""
    if not os.path.lexists(real):
        return
    yield real
    for folder, folders, files in os.walk(real):
        for name in (*folders, *files):
            yield os.path.join(folder, name)


def _above_pattern(real: str) -> str:
    """The folder above the first wildcard of a pattern of files; any other path as it is."""
    wildcard = _WILDCARD.search(real)
    if wildcard is None or os.path.lexists(real):
        return real
    return os.path.dirname(real[: wildcard.start()] + "_")


def _is_plain(entry: str) -> bool:
    """True of a regular file, a folder, and a link to one; a pipe would be waited for, and a device never ends."""
    try:
        mode = os.stat(entry).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
