"""The daemon's cache of the Hugging Face hub."""

from __future__ import annotations

import os

import msgspec

from rftd.daemon.http.views.route import Daemon, read
from rftd.daemon.trust.asker import AccessRole


class HubFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder searched by the daemon for models and datasets named as on the hub."""

    folder: str
    """Path of the cache folder on the daemon's machine."""
    inode: int | None
    """Number of the folder on its disk, for recognition by a client; None if the folder does not exist yet."""


@read("/v1/hub-cache", HubFolder, tag="access", role=AccessRole.ADMIN)
async def hub_cache(daemon: Daemon) -> HubFolder:
    """The daemon's cache of the Hugging Face hub; `rftd submit --pull` fills it from the same disk."""
    from rftd.daemon.run.supervisor.hub_cache import HubCache

    return hub_folder(str(HubCache.of(os.environ).root))


def hub_folder(folder: str) -> HubFolder:
    """Returns the folder of this path, as seen by this machine."""
    try:
        return HubFolder(folder=folder, inode=os.stat(folder).st_ino)
    except OSError:
        return HubFolder(folder=folder, inode=None)
