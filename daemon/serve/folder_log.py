"""The log that a data folder's tables and list of experiments are of: the embedded one, or one elsewhere.

They are witnesses of what their log held. Of another log they would testify that it lost all that it never had, so they
are put aside, and filled anew, when a folder is used with the other kind of log.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Final

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.durable import make_durable_folder, write_durable
from rftd.streams.sqlite.lock_file import LockFile

_EMBEDDED: Final = "embedded"
_ELSEWHERE: Final = "elsewhere"


def of_another_log(folder: DataFolder, *, embedded: bool) -> bool:
    """True if the folder was used last with a log of the other kind. Blocks."""
    last = _last(folder)
    return last is not None and last != _kind(embedded)


def keep_for(folder: DataFolder, *, embedded: bool) -> None:
    """Remembers the kind of the folder's log; what is of another is put into `aside`. Blocks.

    Whoever calls it has the lock of its own log. Raises ConflictError while a daemon uses the folder with the other.
    """
    kind, last = _kind(embedded), _last(folder)
    if last is not None and last != kind:
        others = folder.root if embedded else folder.log
        lock = LockFile(others) if others.is_dir() else None
        try:
            _put_aside(folder, last)
        finally:
            if lock is not None:
                lock.release()
    if last != kind or not folder.log_kind.exists():
        # Last, so that a start that was cut off before puts aside what is left.
        write_durable(folder.log_kind, f"{kind}\n".encode())


def _kind(embedded: bool) -> str:
    return _EMBEDDED if embedded else _ELSEWHERE


def _last(folder: DataFolder) -> str | None:
    """The kind of log that the folder was used with last; None if that is not known."""
    with suppress(FileNotFoundError):
        found = folder.log_kind.read_text(encoding="utf-8", errors="replace").strip()
        return found if found in (_EMBEDDED, _ELSEWHERE) else None
    # No daemon has started there yet, or one was cut off: an embedded log is known by its folder.
    return _EMBEDDED if folder.log.is_dir() else None


def _put_aside(folder: DataFolder, last: str) -> None:
    place = folder.root / "aside" / last
    shutil.rmtree(place, ignore_errors=True)
    make_durable_folder(place)
    # The file of the tables goes first: its write-ahead file alone is read by nobody.
    for path in (folder.state, *(folder.root / f"{folder.state.name}{end}" for end in ("-wal", "-shm")), folder.known):
        with suppress(FileNotFoundError):
            path.rename(place / path.name)
