"""`FolderDaemon`: the daemon of `Client.local` on a folder, ended with the client."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.connection import DaemonConnection
from rftd.daemon.http.client.driving import driven
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.client.transport import BlockingTransport
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import UnreachableError


class FolderDaemon:
    """A daemon on a folder, started unless one serves the folder already; ended by `stop`, or with the program."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """`options` are those of `rftd serve`. Raises UnreachableError for a daemon failing to start."""
        self._host: DaemonHost | None = None
        """The daemon started here; None if one served the folder already."""
        self.folder = folder.absolute()
        """Absolute path of the data folder."""
        if not _serves(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            log = self.folder / "local.log"
            self._host = DaemonHost(self.folder, log, list(_flags(options)), say=lambda text: None, tied=True)
            self._host.__enter__()
            atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the daemon if it was started here. Idempotent; blocks."""
        if self._host is not None:
            atexit.unregister(self.stop)
            host = self._host
            self._host = None
            host.stop()


def _serves(folder: Path) -> bool:
    """True if a daemon answers for this folder."""
    if not DataFolder(folder).endpoint.is_file():
        return False
    try:
        connection = DaemonConnection(Settings(data=str(folder)), os.environ, BlockingTransport)
        try:
            driven(connection.readiness())
        finally:
            driven(connection.close())
    except UnreachableError:
        return False
    return True


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields options as flags: `slots=2` is `--slots 2`, a list repeats a flag, and a boolean sets one."""
    for name, setting in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(setting, bool):
            yield from [flag] if setting else []
            continue
        for word in setting if isinstance(setting, list | tuple) else [setting]:
            yield from (flag, os.fspath(word) if isinstance(word, os.PathLike) else str(word))
