"""The one form of paths that people write, in every verb and every event, so that equal folders are equal text."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_path(text: str | Path, *, below: Path | None = None) -> str:
    """The path from the root, below the working folder (or `below`) if it is relative, without `~`, `.`, `..` or `//`.

    Links are not followed: the text has to mean the same on machines that mount folders in different ways.
    """
    joined = os.path.join(below if below is not None else Path.cwd(), os.path.expanduser(text))
    return plain_path(joined)


def plain_path(text: str) -> str:
    """An absolute path, perhaps of another machine, in the same form."""
    normal = os.path.normpath(text)  # POSIX lets two leading slashes mean something else, so this keeps them
    return "/" + normal.lstrip("/") if normal.startswith("//") else normal
