"""The cache of the Hugging Face hub that a daemon looks into."""

from __future__ import annotations

import os

import msgspec

from rftd.daemon.http.views.route import Daemon, read
from rftd.daemon.trust.asker import AccessRole


class HubFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder in which the daemon looks for models and datasets that a submission names as on the hub."""

    folder: str
    inode: int | None
    """The number of the folder on its disk, by which a client knows it again; None if there is no such folder yet."""


@read("/v1/hub-cache", HubFolder, tag="access", role=AccessRole.ADMIN)
async def hub_cache(daemon: Daemon) -> HubFolder:
    """The daemon's cache of the Hugging Face hub; `rftd submit --pull` fills it where it is on the same disk."""
    from rftd.daemon.run.supervisor.hub_cache import HubCache

    return hub_folder(str(HubCache.of(os.environ).root))


def hub_folder(folder: str) -> HubFolder:
    """The folder of this path, as this machine has it."""
    try:
        return HubFolder(folder=folder, inode=os.stat(folder).st_ino)
    except OSError:
        return HubFolder(folder=folder, inode=None)
