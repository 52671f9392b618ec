"""The installed releases of programs and libraries."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release_of(package: str) -> str:
    """Returns the installed release, or `0` for sources that were never installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "0"
