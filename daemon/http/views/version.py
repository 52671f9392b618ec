"""The read of the daemon's release."""

from __future__ import annotations

import platform

import msgspec

from rftd.daemon.http.views.route import Daemon, read


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """The release of a daemon, and of its Python."""

    version: str
    """Release of the daemon."""
    python: str
    """Release of the daemon's Python."""


@read("/version", VersionView, tag="probes")
async def version(daemon: Daemon) -> VersionView:
    """The daemon's release, and the release of its Python."""
    return VersionView(version=daemon.version, python=platform.python_version())
