"""Paths in the daemon's folder, and the short folder for its socket."""

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
"""Header of a request meant only for the daemon of one folder, with the id from endpoint.json."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """endpoint.json: URL, process id and folder id of the folder's daemon, read by clients."""

    url: str
    pid: int
    folder: str = ""
    """Id of the folder, sent by clients: another folder's daemon may have taken over the port."""


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """backup.last: the latest backup of the folder."""

    created: str
    """Time in ISO 8601."""
    folder: str


class DataFolder:
    """Paths of all files and folders of a daemon below `--data DIR`."""

    LOG_ID: Final = "log.id"

    def __init__(self, root: Path) -> None:
        self.root = Path(absolute_path(root))
        self.log = self.root / "log"
        self.state = self.root / "state.db"
        self.state_url = f"sqlite+aiosqlite:///{self.state}"
        self.endpoint = self.root / "endpoint.json"
        self.daemon_log = self.root / "daemon.log"
        """File with the daemon's own log lines."""
        self.archives = self.root / "archives"
        """Default folder of `rftd archive`."""
        self.files = self.root / "files"
        """Folder whose files may be named by anybody but the owner, if the configuration has no roots."""
        self.losses = self.root / "losses.json"
        """Permanent record of detected losses of the log."""
        self.known = self.root / "known"
        """Folder of the registry's snapshots, avoiding reading all spines at a start."""
        self.log_kind = self.root / "log.kind"
        """Kind of log behind the tables and snapshots here: see `folder_log`."""
        self.log_id = self.root / self.LOG_ID
        """Identity distinguishing the folder's log from copies: see `log_identity`."""
        self.tokens = self.root / "tokens.json"
        """Digests of all tokens except the owner's."""
        self.backed_up = self.root / "backup.last"
        """Time and target of the latest `rftd backup`."""
        self.unfinished = self.root / "backup.pending"
        """Exists while the folder is a backup being written, or an interrupted one."""
        self.importing = self.root / "import.pending"
        """Names the experiment and the file of an unfinished import."""

    @property
    def socket(self) -> Path:
        """The log's Unix socket, outside the folder because a socket's path is limited to about 100 bytes."""
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        # The folder's name as a hash: two daemons of one user need two sockets, and a deep path would be too long.
        name = sha256(str(self.root).encode()).hexdigest()[:12]
        return base / f"rftd-{os.getuid()}-{name}" / "log.sock"

    @property
    def id(self) -> str:
        """Id of an existing folder, constant at its location; a copy has a different id."""
        # Not the path alone: in two containers, two folders may have equal paths.
        status = self.root.stat()
        return sha256(f"{self.root.resolve()}:{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:16]

    def prepare(self) -> None:
        """Creates or adopts the folder, closed to other users with all files of the daemon.

        Raises the errors of `check_whole`.
        """
        self.check_whole()
        make_durable_folder(self.root)
        make_durable_folder(self.files)
        self.close()

    def check_whole(self) -> None:
        """Raises ConflictError for an unfinished import or backup, while the log lacks records."""
        self.check_no_partial_backup()
        if self.importing.exists():
            file = self.importing.read_text(encoding="utf-8").partition(" ")[2]
            raise ConflictError(
                "an import into this log was interrupted, or is under way: the experiment is not whole",
                where=str(self.importing),
                fix=f"repeat it, unless it is under way: rftd import {shlex.quote(file)}",
            )

    def check_no_partial_backup(self) -> None:
        """Raises ConflictError for a folder with an unfinished backup."""
        if self.unfinished.exists():
            raise ConflictError(
                "this folder is a backup that was cut off, or is under way: it is not whole",
                where=str(self.unfinished),
                fix="name a backup that ended, or make one: rftd backup",
            )

    def close(self) -> None:
        """Closes the folder and the files in it to other users."""
        # Passage stays open for the Postgres of `rftd stack`: started by root, it runs as another user. A folder
        # without a cluster counts as well, because a cluster may be created at this moment.
        postgres = self.root / "stack/postgres"
        passes = os.geteuid() == 0 and postgres.is_dir() and not (postgres / "elsewhere").exists()
        tighten(self.root.resolve(), OTHERS & ~PASSAGE if passes else OTHERS)
        for path in (*self.root.glob("*"), *self.log.glob("*")):
            if path.name != "stack":
                tighten(path)

    def announce(self, endpoint: Endpoint) -> None:
        """Writes endpoint.json atomically, so that clients find the daemon."""
        # Replaced in one step: a client reading half an address would contact another program's port.
        temporary = self.endpoint.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(endpoint))
        temporary.replace(self.endpoint)
