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
from rftd.ops.own_folder import OTHER_USERS_MODE, PASSAGE, tighten
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
        self.words = self.root / "words"
        """Folder of word indices, a cache."""
        self.terms = self.root / "terms"
        """Folder of recomputed terms of objectives, a cache."""
        self.archives = self.root / "archives"
        """Default folder of `rftd archive`."""
        self.files = self.root / "files"
        """Folder whose files an experiment of any user may name, if the configuration sets no roots; the owner may name
        any file.
        """
        self.losses = self.root / "losses.json"
        """Permanent record of detected losses of the log."""
        self.known = self.root / "known"
        """Folder of snapshots of the registry of experiments; without them a start reads the life events of every
        experiment.
        """
        self.alerts = self.root / "alerts.json"
        """Alerts that no receiver took yet, and the runs seen; see `daemon.serve.alert`."""
        self.log_kind = self.root / "log.kind"
        """File naming the kind of log (for example SQLite or Kafka) behind the folder's tables and snapshots: see
        `folder_log`.
        """
        self.log_id = self.root / self.LOG_ID
        """File with the identity of the folder's log, different for a copy of the folder: see `log_identity`."""
        self.tokens = self.root / "tokens.json"
        """Digests of all tokens except the owner's."""
        self.backed_up = self.root / "backup.last"
        """File recording time and target of the latest `rftd backup`."""
        self.unfinished = self.root / "backup.pending"
        """File present while a backup is being written into this folder; left over if the backup was interrupted."""
        self.importing = self.root / "import.pending"
        """File naming the experiment and the archive of an import into this log, present until every record was
        imported.
        """

    @property
    def socket(self) -> Path:
        """The log's Unix socket, outside the folder because a socket's path is limited to about 100 bytes."""
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        # The folder's name as a hash: two daemons of one user need two sockets, and a deep path would be too long.
        name = sha256(str(self.root).encode()).hexdigest()[:12]
        return base / f"rftd-{os.getuid()}-{name}" / "log.sock"

    @property
    def id(self) -> str:
        """Id of the existing folder by path, device and inode: constant at its location, and different for a copy."""
        # Not the path alone: in two containers, two folders may have equal paths.
        status = self.root.stat()
        return sha256(f"{self.root.resolve()}:{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:16]

    def prepare(self) -> None:
        """Creates or reopens the folder, and removes other users' permissions on the folder and the daemon's files.

        Raises the errors of `check_whole`.
        """
        self.check_whole()
        make_durable_folder(self.root)
        make_durable_folder(self.files)
        self.close()

    def check_whole(self) -> None:
        """Raises ConflictError if an import or a backup into this folder was interrupted or still runs: its log lacks
        records.
        """
        self.check_no_partial_backup()
        if self.importing.exists():
            file = self.importing.read_text(encoding="utf-8").partition(" ")[2]
            raise ConflictError(
                "an import into this log was interrupted, or is under way: the experiment is not whole",
                where=str(self.importing),
                fix=f"repeat it, unless it is under way: rftd import {shlex.quote(file)}",
            )

    def check_no_partial_backup(self) -> None:
        """Raises ConflictError if a backup into this folder was interrupted or still runs."""
        if self.unfinished.exists():
            raise ConflictError(
                "this folder is a backup that was cut off, or is under way: it is not whole",
                where=str(self.unfinished),
                fix="name a backup that ended, or make one: rftd backup",
            )

    def close(self) -> None:
        """Removes the permissions of other users from the folder and the files in it, except passage to a cluster of
        `rftd stack`.
        """
        # Passage stays open for the Postgres of `rftd stack`: started by root, it runs as another user. A folder
        # without a cluster counts as well, because a cluster may be created at this moment.
        postgres = self.root / "stack/postgres"
        passes = os.geteuid() == 0 and postgres.is_dir() and not (postgres / "elsewhere").exists()
        tighten(self.root.resolve(), OTHER_USERS_MODE & ~PASSAGE if passes else OTHER_USERS_MODE)
        for path in (*self.root.glob("*"), *self.log.glob("*")):
            if path.name != "stack":
                tighten(path)

    def announce(self, endpoint: Endpoint) -> None:
        """Writes endpoint.json atomically, so that clients find the daemon."""
        # Replaced in one step: a client reading half an address would contact another program's port.
        temporary = self.endpoint.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(endpoint))
        temporary.replace(self.endpoint)
