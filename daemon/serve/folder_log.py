"""The kind of log behind a data folder's tables and list of experiments: the embedded one, or one elsewhere.

Tables and list are witnesses of the records of their log. For another log they would report all missing records as
lost, so they are put aside, and filled again, when a folder is used with the other kind of log.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Final

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.durable import make_durable_folder, write_durable
from rftd.streams.sqlite.lock_file import LockFile

_EMBEDDED: Final = "embedded"
"""Kind of a log in the data folder itself."""
_ELSEWHERE: Final = "elsewhere"
"""Kind of a log on a server."""


def of_another_log(folder: DataFolder, *, embedded: bool) -> bool:
    """True if the folder was last used with the other kind of log (embedded, or on a server). Blocks."""
    last = _last(folder)
    return last is not None and last != _kind(embedded)


def keep_for(folder: DataFolder, *, embedded: bool) -> None:
    """Records whether the folder's log is `embedded`; tables and snapshots of the other kind of log are moved to the
    folder `aside`. Blocks.

    The caller holds the lock of its own log. Raises ConflictError while a daemon uses the folder with the other kind.
    """
    kind, last = _kind(embedded), _last(folder)
    if last is not None and last != kind:
        other_lock_folder = folder.root if embedded else folder.log
        lock = LockFile(other_lock_folder) if other_lock_folder.is_dir() else None
        try:
            _put_aside(folder, last)
        finally:
            if lock is not None:
                lock.release()
    if last != kind or not folder.log_kind.exists():
        # Written last, so that a start after an interruption moves the remaining files.
        write_durable(folder.log_kind, f"{kind}\n".encode())


def _kind(embedded: bool) -> str:
    """Returns the name of the kind of log."""
    return _EMBEDDED if embedded else _ELSEWHERE


def _last(folder: DataFolder) -> str | None:
    """Returns the kind of log last used with the folder; None if unknown."""
    with suppress(FileNotFoundError):
        kind = folder.log_kind.read_text(encoding="utf-8", errors="replace").strip()
        return kind if kind in (_EMBEDDED, _ELSEWHERE) else None
    # No daemon has started there yet, or the start was interrupted: an embedded log is recognised by its folder.
    return _EMBEDDED if folder.log.is_dir() else None


def _put_aside(folder: DataFolder, last: str) -> None:
    """Moves tables and list of experiments to the folder `aside/LAST`, whose former content is deleted."""
    aside = folder.root / "aside" / last
    shutil.rmtree(aside, ignore_errors=True)
    make_durable_folder(aside)
    # The tables' file goes first: a write-ahead file alone is never read.
    for path in (folder.state, *(folder.root / f"{folder.state.name}{end}" for end in ("-wal", "-shm")), folder.known):
        with suppress(FileNotFoundError):
            path.rename(aside / path.name)
