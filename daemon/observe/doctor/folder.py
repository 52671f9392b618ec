"""Checks of the data folder and of the disk below it. Nothing is changed: what is tried is undone."""

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
LOW_DISK_GIB: Final = 5.0
NO_DISK_GIB: Final = 0.5
_SQLITE: Final = b"SQLite format 3\0"
_WRITABLE: Final = "set XDG_RUNTIME_DIR, or else TMPDIR, in which it lies, to a short folder that can be written"
_CLOCK_S: Final = 5.0
_PREFIX: Final = ".rftd-doctor-"


def check_folder(folder: Path, clock: Clock) -> list[Diagnosis]:
    """Checks that the data folder can be written to, durably, has room, and holds nothing that stops a daemon."""
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
        *_of_time(home, stamped_s - written_s),
        _disk(home),
        check_store(home),
        *_of_content(DataFolder(folder)),
    ]


def check_store(home: Path, check: str = "artifacts") -> Diagnosis:
    """Checks that what is too large for an event, a checkpoint too, can be written below `home` and read back."""
    data = os.urandom(4096)
    try:
        with tempfile.TemporaryDirectory(dir=nearest(home), prefix=_PREFIX) as folder:
            store = ArtifactStore(Path(folder))
            same = store.read(store.put(data)) == data
    except (OSError, RftdError) as error:
        why = error.what if isinstance(error, RftdError) else error.strerror
        return Diagnosis(check, "fail", f"{home} cannot be written and read: {why}", "give a folder that can be")
    if not same:
        return Diagnosis(check, "fail", f"{home} gives back other bytes than it took", "check the disk")
    return Diagnosis(check, "ok", f"written, synced and read back at {home}")


def check_socket(folder: Path) -> list[Diagnosis]:
    """Checks that workers of this machine can reach the embedded log: its socket has a short folder of its own."""
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


def _of_time(home: Path, ahead_s: float) -> Iterator[Diagnosis]:
    if abs(ahead_s) > _CLOCK_S:
        what = f"the file system of {home} is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this clock"
        fix = "let this machine and its file server follow one time server (timedatectl set-ntp true)"
        yield Diagnosis("clock", "warn", what, fix)


def _disk(home: Path) -> Diagnosis:
    free = shutil.disk_usage(home).free / _GIB
    what = f"{free:.1f} GiB free at {home}"
    if free < NO_DISK_GIB:
        return Diagnosis("disk", "fail", what, "free some space: the log refuses appends when it is full")
    if free < LOW_DISK_GIB:
        return Diagnosis("disk", "warn", what, "free some space: checkpoints and the log grow")
    return Diagnosis("disk", "ok", what)


def _of_content(data: DataFolder) -> Iterator[Diagnosis]:
    """The findings of what lies in the folder and would stop a daemon, or an experiment."""
    if data.importing.exists():
        what = f"{data.importing}: an import was interrupted, and rftd serve refuses the folder"
        yield Diagnosis("import", "fail", what, "repeat it: rftd import FILE; it goes on where it was")
    if data.unfinished.exists():
        what = f"{data.root} is a backup that was cut off, and rftd serve refuses the folder"
        yield Diagnosis("backup", "fail", what, "make another one: rftd backup")
    yield from _of_backup(data)
    if data.losses.exists():
        what = f"{data.losses}: the log lost records that were acknowledged"
        fix = "rftd ls shows the experiments that wait; put the newest log back, or rftd serve --accept-loss NAME"
        yield Diagnosis("log", "warn", what, fix)
    file = data.log / "log.db"
    try:
        head = _head(file)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Diagnosis("log", "fail", f"{file} cannot be read: {error.strerror}", "give back your right to read it")
        return
    # SQLite begins a database with an empty file.
    if head not in (b"", _SQLITE):
        what = f"{file} is no log: it does not begin as a database does"
        yield Diagnosis("log", "fail", what, "restore the whole data folder from a backup, or give another --data")


def _of_backup(data: DataFolder) -> Iterator[Diagnosis]:
    """The last backup of a folder that has one."""
    try:
        last = json_decoder(LastBackup).decode(data.backed_up.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        yield Diagnosis("backup", "warn", f"{data.backed_up} cannot be read: {error}", "make a backup: rftd backup TO")
        return
    if Path(last.folder).is_dir():
        yield Diagnosis("backup", "ok", f"made at {last.created}, in {last.folder}")
    else:
        what = f"made at {last.created}, and {last.folder} is not there"
        yield Diagnosis("backup", "warn", what, "make another one: rftd backup TO")


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(len(_SQLITE))
