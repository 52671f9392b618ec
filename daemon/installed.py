"""The release of rftd that is installed."""

from __future__ import annotations

from rftd.ops.releases import release_of


def installed_version() -> str:
    """The release, or `0` for sources that were never installed."""
    return release_of("rftd")
