"""`LocalClient`: a client with a daemon of its own on a folder, ended together with the client."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import UnreachableError


class LocalClient(Client):
    """A client starting a daemon on its folder, unless one serves the folder already.

    The daemon ends with `close`, at the end of a `with` block, with the program, and with a killed program too.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """`options` are those of `rftd serve`. Raises UnreachableError for a daemon failing to start."""
        self._host: DaemonHost | None = None
        folder = folder.absolute()
        if not _serves(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._host = DaemonHost(
                folder, folder / "local.log", list(_flags(options)), say=lambda text: None, tied=True
            )
            self._host.__enter__()
            atexit.register(self.close)
        super().__init__(data=folder)

    def close(self) -> None:
        """Closes all connections, and ends the daemon if this client started one."""
        super().close()
        if self._host is not None:
            atexit.unregister(self.close)
            host = self._host
            self._host = None
            host.stop()


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
