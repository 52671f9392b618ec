"""`UserState`: the daemons of the current user, in a folder of the user: address of each, and the owner's token.

Enables `rftd ls` from any directory. A file counts only if file and folder belong to the user and are closed to others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from rftd.daemon.trust.token_file import TokenFileError, read_private
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.durable import write_durable


class KnownDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon of the current user: URL, data folder, process id and owner's token."""

    url: str
    folder: str
    """The daemon's data folder."""
    folder_id: str
    pid: int
    token: str
    """The owner's token, for this URL only."""

    def __repr__(self) -> str:
        return f"KnownDaemon({self.url})"

    @property
    def is_alive(self) -> bool:
        """True if a process with the daemon's pid exists and belongs to the user."""
        try:
            # Signal 0 is never delivered: the kernel only checks whether the process exists.
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # the pid was reused by another user's process
            return False
        return True


class UserState:
    """The user's folder of known daemons: `$XDG_STATE_HOME/rftd`, by default `~/.local/state/rftd`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        base = environ.get("XDG_STATE_HOME", "")
        # A relative path must be ignored, according to the XDG specification.
        home = environ.get("HOME") or os.path.expanduser("~")
        self.folder = (Path(base) if os.path.isabs(base) else Path(home) / ".local" / "state") / "rftd"

    def daemons(self) -> list[KnownDaemon]:
        """Returns the running daemons with files accessible only to the user."""
        return [daemon for _, daemon in self._read() if daemon.is_alive]

    def record(self, daemon: KnownDaemon) -> None:
        """Writes the file of a daemon, and deletes files of ended daemons. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_ours():
            raise PermissionError(f"{self.folder} is not closed to other users: chmod 700 {self.folder}")
        for path, recorded in self._read():
            if not recorded.is_alive:
                path.unlink(missing_ok=True)
        self._write(daemon)

    def renew(self, folder: str, token: str) -> None:
        """Stores the owner's new token in the file of a data folder, if present."""
        for _, daemon in self._read():
            if daemon.folder == folder:
                self._write(msgspec.structs.replace(daemon, token=token))

    def forget(self, folder: str) -> None:
        """Deletes the file of a data folder's daemon; errors are ignored."""
        with suppress(OSError):
            self._path(folder).unlink()

    def _write(self, daemon: KnownDaemon) -> None:
        path = self._path(daemon.folder)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        write_durable(path, msgspec.json.encode(daemon))

    def _path(self, folder: str) -> Path:
        return self.folder / f"{sha256(folder.encode()).hexdigest()[:16]}.json"

    def _is_ours(self) -> bool:
        try:
            status = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077

    def _read(self) -> Iterator[tuple[Path, KnownDaemon]]:
        if not self._is_ours():
            return
        for path in sorted(self.folder.glob("*.json")):
            with suppress(OSError, TokenFileError, *UNREADABLE):
                yield path, json_decoder(KnownDaemon).decode(read_private(path))
