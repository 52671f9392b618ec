"""The daemon's folder: what lies where, and the short folder for its socket."""

from __future__ import annotations

import os
import shlex
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.durable import make_durable_folder
from rftd.ops.errors import ConflictError
from rftd.ops.own_folder import OTHERS, PASSAGE, tighten
from rftd.ops.paths import absolute_path

FOLDER_HEADER: Final = "Rftd-Folder"
"""The header of a request that is meant for the daemon of one folder only: the id in its endpoint.json."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """endpoint.json: where the daemon of this folder answers."""

    url: str
    pid: int
    folder: str = ""
    """The id of the folder, which a client sends along: another folder's daemon may have the port by then."""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """backup.last: the newest backup of this folder."""

    created: str
    """ISO 8601."""
    folder: str


class DataFolder:
    """The paths below `--data DIR`."""

    LOG_ID: Final = "log.id"

    def __init__(self, root: Path) -> None:
        self.root = Path(absolute_path(root))
        self.log = self.root / "log"
        self.state = self.root / "state.db"
        self.state_url = f"sqlite+aiosqlite:///{self.state}"
        self.endpoint = self.root / "endpoint.json"
        self.daemon_log = self.root / "daemon.log"
        """The file that the daemon's own log lines are written to."""
        self.archives = self.root / "archives"
        """The folder in which `rftd archive` writes unless a file is given."""
        self.files = self.root / "files"
        """The folder below which others than the owner may name files, where the configuration names no roots."""
        self.losses = self.root / "losses.json"
        """The file that keeps for ever what the log was seen to have lost."""
        self.known = self.root / "known"
        """The folder of the registry's snapshots, so that a start need not read all spines."""
        self.log_kind = self.root / "log.kind"
        """Says which kind of log tables and snapshots here are of: see `folder_log`."""
        self.log_id = self.root / self.LOG_ID
        """Tells this folder's log from those of copies: see `log_identity`."""
        self.tokens = self.root / "tokens.json"
        """The digests of the tokens of others than the owner."""
        self.backed_up = self.root / "backup.last"
        """Says when `rftd backup` was here last, and where the copy is."""
        self.unfinished = self.root / "backup.pending"
        """Is there while this folder is a backup that is being written, or was cut off."""
        self.importing = self.root / "import.pending"
        """Names the experiment and the file of an import that has begun and not ended."""

    @property
    def socket(self) -> Path:
        """The log's Unix socket. Outside the folder, since a socket's path is limited to about 100 bytes."""
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        # The folder's name as a hash: two daemons of one user need two sockets, and a deep path would be too long.
        name = sha256(str(self.root).encode()).hexdigest()[:12]
        return base / f"rftd-{os.getuid()}-{name}" / "log.sock"

    @property
    def id(self) -> str:
        """The folder's id while it stays where it is; that of a copy is another one. The folder is there already."""
        # Not by its path alone: in two containers, two folders may have the same one.
        found = self.root.stat()
        return sha256(f"{self.root.resolve()}:{found.st_dev}:{found.st_ino}".encode()).hexdigest()[:16]

    def prepare(self) -> None:
        """Makes the folder, or takes it, closed to other users with all that the daemon writes there.

        Raises as `check_whole`.
        """
        self.check_whole()
        make_durable_folder(self.root)
        make_durable_folder(self.files)
        self.close()

    def check_whole(self) -> None:
        """Raises ConflictError where an import or a backup has not ended, and the log lacks some of its records."""
        self.check_no_partial_backup()
        if self.importing.exists():
            file = self.importing.read_text(encoding="utf-8").partition(" ")[2]
            raise ConflictError(
                "an import into this log was interrupted, or is under way: the experiment is not whole",
                where=str(self.importing),
                fix=f"repeat it, unless it is under way: rftd import {shlex.quote(file)}",
            )

    def check_no_partial_backup(self) -> None:
        """Raises ConflictError for a folder that is a backup which has not ended."""
        if self.unfinished.exists():
            raise ConflictError(
                "this folder is a backup that was cut off, or is under way: it is not whole",
                where=str(self.unfinished),
                fix="name a backup that ended, or make one: rftd backup",
            )

    def close(self) -> None:
        """Closes the folder to other users, and what is open to them in it."""
        # To pass through, for the Postgres of `rftd stack`: where root starts that, it runs as another user. A folder
        # without a cluster counts as well: one that starts beside this daemon makes its cluster at this moment.
        postgres = self.root / "stack/postgres"
        passes = os.geteuid() == 0 and postgres.is_dir() and not (postgres / "elsewhere").exists()
        tighten(self.root.resolve(), OTHERS & ~PASSAGE if passes else OTHERS)
        for path in (*self.root.glob("*"), *self.log.glob("*")):
            if path.name != "stack":
                tighten(path)

    def announce(self, endpoint: Endpoint) -> None:
        """Writes endpoint.json, whole or not at all."""
        # Replaced in one step: a client that reads half an address would ask a stranger's port.
        temporary = self.endpoint.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(endpoint))
        temporary.replace(self.endpoint)
