"""Which release of rftd this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The release, or `0` for sources that were never installed."""
    try:
        return version("rftd")
    except PackageNotFoundError:
        return "0"
