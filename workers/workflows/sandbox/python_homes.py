"""Folders that a command by a Python outside the system needs to read."""

from __future__ import annotations

from pathlib import Path


def python_homes(python: Path) -> list[str]:
    """Returns the folder of a virtual environment, and of the Python behind its link; none for a path of another
    layout.

    The path may be a stranger's: a folder without a Python's library, the root and the user's own folder are never
    returned, for `/bin/python` or `~/bin/python` would open everything below.
    """
    homes = {path.parent.parent for path in (python, python.resolve())} - {Path("/"), Path.home()}
    return sorted(str(home) for home in homes if _has_library(home))


def _has_library(home: Path) -> bool:
    """True if the folder has the layout of a Python or of a virtual environment."""
    return (home / "pyvenv.cfg").is_file() or any((home / "lib").glob("python3*/os.py"))
