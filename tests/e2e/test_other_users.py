"""Other users of the machine read nothing of a daemon's, and put nothing of their own in its place.

Their part is played by commands that run as the user `nobody`, which only root can start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.until import PATIENCE_S

from rftd.daemon.observe.doctor.access import check_access, check_socket_access
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.daemon.trust.token_file import TokenFile
from rftd.ops.errors import ConflictError
from rftd.streams.sqlite.socket.client import SocketLog

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
_READS = 'for file; do cat "$file" > /dev/null 2>&1 && echo "$file"; done; true'


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody comes into and writes to, as into /tmp; sockets go there, too."""
    with tempfile.TemporaryDirectory(prefix="rftd-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield folder


def by_nobody(*command: str) -> str:
    """What a command of the other user's prints."""
    done = subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=(), capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def read_by_nobody(paths: Iterable[Path]) -> list[str]:
    """Those files that the other user can read."""
    return by_nobody("sh", "-c", _READS, "sh", *map(str, paths)).splitlines()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_of(paths: Iterable[Path], *, folders: bool = False) -> set[int]:
    """The modes of those that are there: weights that nobody needs any more are removed meanwhile."""
    modes = set[int]()
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISDIR(status.st_mode) or not folders:
                modes.add(stat.S_IMODE(status.st_mode))
    return modes


@as_root
@pytest.mark.parametrize(("options", "rights"), [((), 0o700), (("--folders", "group"), 0o770)])
def test_nobody_else_reads_log_tables_worker_logs_and_checkpoints(
    public: Path, options: tuple[str, ...], rights: int
) -> None:
    """With `--folders group` the group comes into an experiment's folder; the data folder is private even then."""
    scene = Scene(public, *options)
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT)
        page = scene.until_ended(name)
        files = [path for path in public.rglob("*") if path.is_file() and path.parent != public]
        assert read_by_nobody([public / "train.jsonl", *files]) == [str(public / "train.jsonl")]
        assert check_access(scene.data.root)[0].status == "ok"
    # What is below a closed folder is closed itself.
    assert mode_of(scene.data.root) == 0o700
    job = Path(page.experiment.job_dir)
    assert modes_of((job, *job.rglob("*")), folders=True) == {rights}
    assert {mode & 0o777 & ~rights for mode in modes_of((*job.rglob("*"), *scene.data.root.rglob("*")))} == {0}
    names = {path.name for path in files}
    assert {"log.db", "state.db", "endpoint.json", "daemon.log", "trainer.log", "explorer_0.log"} <= names, names


@as_root
def test_a_folder_of_an_earlier_release_is_closed_when_the_daemon_starts(public: Path) -> None:
    scene = Scene(public)
    scene.data.log.mkdir(parents=True)
    before = [scene.data.endpoint, scene.data.daemon_log, scene.data.log / "old.db"]
    for path in before:
        path.write_text("secret")
        path.chmod(0o644)
    for folder in (scene.data.root, scene.data.log):
        folder.chmod(0o755)
    assert read_by_nobody(before) == [str(path) for path in before]
    assert {finding.status for finding in check_access(scene.data.root)} == {"warn"}
    with scene.host:
        assert read_by_nobody(before) == []
    assert {mode_of(path) for path in before} == {0o600}


@as_root
def test_a_job_folder_that_was_open_is_closed_by_its_workers(public: Path) -> None:
    scene = Scene(public)
    job = public / "checkpoints" / "crash" / "sums"
    job.mkdir(parents=True)
    with scene.host:
        page = scene.until_ended(scene.submit(EXPERIMENT, *SHORT))
        assert Path(page.experiment.job_dir) == job
    assert mode_of(job) == 0o700


@as_root
@pytest.mark.parametrize("made", ["mkdir -m 777", "ln -s /tmp"])
def test_a_socket_folder_that_somebody_else_made_is_refused(public: Path, made: str) -> None:
    data = DataFolder(public / "data")
    by_nobody(*made.split(), str(data.socket.parent))
    said = subprocess.run(
        [sys.executable, "-P", "-m", "rftd.daemon", "serve", "--data", str(data.root), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert said.returncode == 5, said
    assert "error[RFTD-CON-001]" in said.stderr
    assert str(data.socket.parent) in said.stderr
    assert "Traceback" not in said.stderr
    assert not data.socket.exists()
    assert [finding.status for finding in check_socket_access(data.root)] == ["fail"]


@as_root
@pytest.mark.anyio
@pytest.mark.parametrize("impostor", ["the folder's owner", "the listener"])
async def test_a_worker_sends_nothing_to_a_socket_of_somebody_elses(public: Path, impostor: str) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    path = public / "own" / "log.sock"
    path.parent.mkdir(mode=0o700)
    # The kernel tells clients the user that was there when the socket began to listen.
    server = await asyncio.start_unix_server(listen, path, start_serving=False)
    os.seteuid(NOBODY if impostor == "the listener" else 0)
    try:
        await server.start_serving()
    finally:
        os.seteuid(0)
    if impostor == "the folder's owner":
        os.chown(path.parent, NOBODY, NOBODY)
    async with server:
        with pytest.raises(ConflictError, match=str(NOBODY)):
            await SocketLog.connect(path, grace_s=0.0)
    assert heard in ([], [b""])


@as_root
@pytest.mark.parametrize("user", [NOBODY, 0], ids=["another user", "the owner"])
def test_the_owners_token_stays_home_when_another_user_has_the_port(public: Path, user: int) -> None:
    data = DataFolder(public / "data")
    data.prepare()
    token = TokenFile(data.root).rotate_owner()
    # A socket is of the user that makes it.
    os.seteuid(user)
    try:
        listening = socket.socket()
    finally:
        os.seteuid(0)
    heard: list[bytes] = []

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    with closing(listening):
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        data.announce(Endpoint(url=url, pid=os.getpid(), folder=data.id))
        threading.Thread(target=answer, daemon=True).start()
        command = [sys.executable, "-P", "-m", "rftd.daemon", "ls", "--data", str(data.root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        listening.shutdown(socket.SHUT_RDWR)
    assert done.returncode != 0
    assert heard, done
    assert (token.encode() in b"".join(heard)) is (user == 0), heard
