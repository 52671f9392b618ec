"""Translation of SQLite's errors into those of rftd."""

from __future__ import annotations

from typing import Final

import apsw

from rftd.ops.errors import LogCorruptError, LogFullError, RftdError, UnreachableError

# A full disk, reported by SQLite as an I/O error: a short write, a cut, or a `-shm` file unable to grow.
_NO_SPACE: Final = {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_TRUNCATE, apsw.SQLITE_IOERR_SHMSIZE}
"""SQLite's codes for a full disk at its own writes."""


def translate(error: BaseException, where: str, *, reading: bool = False) -> RftdError:
    """Converts an exception of SQLite or of the file system into an error of rftd about the file `where`.

    `reading` is True for a read, where unreadable types or values of a row mean a damaged file.
    """
    if isinstance(error, RftdError):
        return error
    extended = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.FullError) or extended in _NO_SPACE:
        return LogFullError(
            f"no space for an append: {error}",
            where=where,
            fix="free space on this disk; appends are retried and nothing acknowledged is lost",
        )
    # A flipped bit in a row's header turns bytes into a number or text: TypeError, ValueError.
    garbled = reading and isinstance(error, TypeError | ValueError)
    if garbled or isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return LogCorruptError(
            f"the log's file is damaged: {error}",
            where=where,
            fix="restore the data folder from a backup; `rftd verify` names the first damaged record",
        )
    # Everything else may have struck before or after the commit: only an outcome reported as unknown makes callers
    # retry with the same ids, and landed ids are recognised.
    return UnreachableError(
        f"the log failed and the outcome of the append is unknown: {type(error).__name__}: {error}",
        where=where,
        fix="retry the same drafts",
    )
