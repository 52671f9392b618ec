"""The normal form of paths written by people, in every verb and event, making equal folders equal texts."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_path(text: str | Path, *, below: Path | None = None) -> str:
    """Returns the absolute path, relative to the working folder (or `below`), without `~`, `.`, `..` or `//`.

    Links are not followed: the text must have equal meaning on machines with different mounts.
    """
    joined = os.path.join(below if below is not None else Path.cwd(), os.path.expanduser(text))
    return plain_path(joined)


def plain_path(text: str) -> str:
    """Returns an absolute path, perhaps of another machine, in normal form."""
    normal = os.path.normpath(text)  # keeps two leading slashes, which POSIX allows to have another meaning
    return "/" + normal.lstrip("/") if normal.startswith("//") else normal
