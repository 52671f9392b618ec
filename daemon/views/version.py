"""The read of what the daemon is."""

from __future__ import annotations

import platform

import msgspec

from rftd.daemon.views.route import Daemon, read


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here."""

    version: str
    python: str


@read("/version", VersionView, tag="probes")
async def version(daemon: Daemon) -> VersionView:
    """What runs here."""
    return VersionView(version=daemon.version, python=platform.python_version())
