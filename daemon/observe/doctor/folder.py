"""Checks of the data folder and its disk. Nothing is changed: every trial is undone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rftd.daemon.serve.data_folder import DataFolder, LastBackup
from rftd.ops.clock import Clock
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RftdError, UsageError
from rftd.ops.health import Diagnosis
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.disk import nearest
from rftd.streams.sqlite.socket.address import check_path

_GIB: Final = 1024**3
"""Bytes of a GiB."""
LOW_DISK_GIB: Final = 5.0
"""Free GiB below which a warning is given."""
NO_DISK_GIB: Final = 0.5
"""Free GiB below which the check fails."""
_SQLITE: Final = b"SQLite format 3\0"
"""First bytes of a SQLite file."""
_WRITABLE: Final = "set XDG_RUNTIME_DIR (or TMPDIR, its parent) to a short writable path"
"""Fix for a socket folder with a too long or unwritable path."""
_CLOCK_S: Final = 5.0
"""Tolerated seconds between this clock and the file system's."""
_PREFIX: Final = ".rftd-doctor-"
"""Beginning of the names of trial files."""


def check_folder(folder: Path, clock: Clock) -> list[Diagnosis]:
    """Checks that the data folder is writable and durable, has room, and contains nothing that prevents a daemon's
    start.
    """
    home = nearest(folder)
    if not home.is_dir():
        return [Diagnosis("folder", "fail", f"{home} is no folder", "give another --data")]
    written_s = clock.now_ns() / 1e9
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=_PREFIX) as file:
            file.write(b"x")
            file.flush()
            # Some network file systems accept the write and refuse this: the log could acknowledge nothing there.
            os.fsync(file.fileno())
            stamped_s = os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return [Diagnosis("folder", "fail", f"{home} cannot be written: {error.strerror}", "give another --data")]
    exists = "can be written" if folder.exists() else f"will be made in {home}"
    return [
        Diagnosis("folder", "ok", f"{folder} {exists}"),
        *_clock_finding(home, stamped_s - written_s),
        _disk_finding(home),
        check_store(home),
        *_content_findings(DataFolder(folder)),
    ]


def check_store(home: Path, check: str = "artifacts") -> Diagnosis:
    """Checks that large files, such as checkpoints or artifacts, can be written below `home` and read back."""
    random_bytes = os.urandom(4096)
    try:
        with tempfile.TemporaryDirectory(dir=nearest(home), prefix=_PREFIX) as folder:
            store = ArtifactStore(Path(folder))
            is_same = store.read(store.put(random_bytes)) == random_bytes
    except (OSError, RftdError) as error:
        why = error.what if isinstance(error, RftdError) else error.strerror
        return Diagnosis(check, "fail", f"{home} cannot be written and read: {why}", "use a writable folder")
    if not is_same:
        return Diagnosis(check, "fail", f"{home} returned different bytes than were written", "check the disk")
    return Diagnosis(check, "ok", f"written, synced and read back at {home}")


def check_socket(folder: Path) -> list[Diagnosis]:
    """Checks that workers of this machine can reach the embedded log through its socket in a short folder path."""
    path = DataFolder(folder).socket
    try:
        check_path(path)
    except UsageError as error:
        return [Diagnosis("socket", "fail", f"{error.what}: {path}", error.fix or "")]
    home = nearest(path.parent)
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=_PREFIX):
            pass
    except OSError as error:
        return [Diagnosis("socket", "fail", f"no folder for {path} can be made in {home}: {error.strerror}", _WRITABLE)]
    return [Diagnosis("socket", "ok", f"workers will find the log at {path}")]


def _clock_finding(home: Path, ahead_s: float) -> Iterator[Diagnosis]:
    """Yields a warning if the file system's clock is `ahead_s` seconds away from this one."""
    if abs(ahead_s) > _CLOCK_S:
        difference = (
            f"the file system of {home} is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this clock"
        )
        fix = "let this machine and its file server follow one time server (timedatectl set-ntp true)"
        yield Diagnosis("clock", "warn", difference, fix)


def _disk_finding(home: Path) -> Diagnosis:
    """Returns the finding about free space."""
    free = shutil.disk_usage(home).free / _GIB
    free_space = f"{free:.1f} GiB free at {home}"
    if free < NO_DISK_GIB:
        return Diagnosis("disk", "fail", free_space, "free some space: the log refuses appends when it is full")
    if free < LOW_DISK_GIB:
        return Diagnosis("disk", "warn", free_space, "free some space: checkpoints and the log grow")
    return Diagnosis("disk", "ok", free_space)


def _content_findings(folder: DataFolder) -> Iterator[Diagnosis]:
    """Yields the findings about folder contents preventing a daemon's start, or an experiment."""
    if folder.importing.exists():
        problem = f"{folder.importing}: an import was interrupted, and rftd serve refuses the folder"
        yield Diagnosis("import", "fail", problem, "repeat it: rftd import FILE; it continues where it stopped")
    if folder.unfinished.exists():
        problem = f"{folder.root} is an incomplete backup, and rftd serve refuses the folder"
        yield Diagnosis("backup", "fail", problem, "make another one: rftd backup")
    yield from _backup_finding(folder)
    if folder.losses.exists():
        problem = f"{folder.losses}: the log lost records that were acknowledged"
        fix = "rftd ls shows the waiting experiments; restore the newest log, or rftd serve --accept-loss NAME"
        yield Diagnosis("log", "warn", problem, fix)
    file = folder.log / "log.db"
    try:
        head = _first_bytes(file)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Diagnosis("log", "fail", f"{file} cannot be read: {error.strerror}", "restore your permission to read it")
        return
    # SQLite begins a database with an empty file.
    if head not in (b"", _SQLITE):
        problem = f"{file} is not a log: it does not start like a database"
        yield Diagnosis("log", "fail", problem, "restore the whole data folder from a backup, or give another --data")


def _backup_finding(folder: DataFolder) -> Iterator[Diagnosis]:
    """Yields the last backup of the folder, if there is one."""
    try:
        last = json_decoder(LastBackup).decode(folder.backed_up.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        yield Diagnosis(
            "backup", "warn", f"{folder.backed_up} cannot be read: {error}", "make a backup: rftd backup TO"
        )
        return
    if Path(last.folder).is_dir():
        yield Diagnosis("backup", "ok", f"made at {last.created}, in {last.folder}")
    else:
        state = f"made at {last.created}, and {last.folder} is not there"
        yield Diagnosis("backup", "warn", state, "make another one: rftd backup TO")


def _first_bytes(file: Path) -> bytes:
    """Returns the first bytes of a file, as many as a SQLite file's magic."""
    with file.open("rb") as opened:
        return opened.read(len(_SQLITE))
