"""`LocalClient`, `AsyncLocalClient`: clients with a daemon of their own on a folder, ended with the client."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rftd.daemon.http.client.client import AsyncClient, Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import UnreachableError


class FolderDaemon:
    """A daemon on a folder, started unless one serves the folder already; ended by `stop`, or with the program."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """`options` are those of `rftd serve`. Raises UnreachableError for a daemon failing to start."""
        self._host: DaemonHost | None = None
        self.folder = folder.absolute()
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


class LocalClient(Client):
    """A client starting a daemon on its folder, unless one serves the folder already.

    The daemon ends with `close`, at the end of a `with` block, with the program, and with a killed program too.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """See `FolderDaemon`."""
        self._daemon = FolderDaemon(folder, options)
        super().__init__(data=self._daemon.folder)

    def close(self) -> None:
        """Closes all connections, and ends the daemon if this client started one."""
        super().close()
        self._daemon.stop()


class AsyncLocalClient(AsyncClient):
    """The asynchronous client of a daemon on its folder; see `LocalClient`."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """See `FolderDaemon`."""
        self._daemon = FolderDaemon(folder, options)
        super().__init__(data=self._daemon.folder)

    async def close(self) -> None:
        """Closes all connections, and ends the daemon if this client started one."""
        await super().close()
        await asyncio.to_thread(self._daemon.stop)


def _serves(folder: Path) -> bool:
    """True if a daemon answers for this folder."""
    if not DataFolder(folder).endpoint.is_file():
        return False
    try:
        with Client(data=folder, patience_s=0.0) as client:
            client.readiness()
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
