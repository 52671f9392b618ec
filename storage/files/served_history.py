"""The hash chain of a served history, for distinguishing an older copy or another history from the promised history.

    chain (row INTEGER PRIMARY KEY, digest BLOB NOT NULL)

Row -1 holds the history's id. The digest of every other row covers the previous row's digest and the committed content
of the row. `tasks.offered` carries id and digest, as the log's memory of the history.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from rftd.ops.errors import DataError, DiskFullError
from rftd.streams.events.task import TasksOffered
from rftd.streams.spec.spec import ExperimentSpec

FILE: Final = "history.db"
"""Name of the history's file."""
CHAIN: Final = "CREATE TABLE IF NOT EXISTS chain (row INTEGER PRIMARY KEY, digest BLOB NOT NULL);"
"""Statement creating the table of digests."""
BEGINNING: Final = -1
"""The row that holds the history's id."""
_NO_SPACE: Final = (
    *("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE"),
    "SQLITE_IOERR_SHMSIZE",  # a copied database with a write-ahead log is opened once more, to switch that off
)
"""Names of SQLite's errors for a full disk."""
_encode: Final = msgspec.msgpack.Encoder().encode
"""Encoder of a row for its digest."""

Read: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a query with its values."""


def chained(before: bytes, runs: Sequence[tuple[str, str, float, Sequence[tuple[str, bytes]]]]) -> bytes:
    """Returns the digest of a row: sha256 over the previous row's digest and the row's runs, in order.

    A run consists of task, name, reward, and the id and response of each answer.
    """
    digest = hashlib.sha256(before)
    for task, name, reward, answers in runs:
        digest.update(_encode((task, name, reward, [(id, hashlib.sha256(blob).digest()) for id, blob in answers])))
    return digest.digest()


def offer_of(read: Read, stage: int, rows: int) -> TasksOffered:
    """Returns the offer of the first `rows` rows (at least one) of a history."""
    history, digest = _chain_at(read, rows)
    return TasksOffered(stage=stage, rows=rows, history=history, digest=digest)


def difference(read: Read, promised: TasksOffered) -> str:
    """Describes a history's difference from the promised history; empty if the history holds all promised rows."""
    rows = int(read("SELECT coalesce(CAST(max(row) AS INTEGER) + 1, 0) FROM runs", ())[0][0])
    history, digest = _chain_at(read, promised.rows)
    if promised.history and history != promised.history:
        return f"is another one: it is {history or 'without an id'}, and rows of {promised.history} were promised"
    if rows < promised.rows:
        return f"is older than the log: it has {rows} rows, and {promised.rows} were promised"
    if promised.history and digest != promised.digest:
        return f"is another one: its first {promised.rows} rows differ from the promised rows"
    return ""


def difference_of(path: Path, promised: TasksOffered) -> str:
    """Describes the difference of a file's history from the promised history; empty without a difference. Blocks.

    A missing file differs if rows were promised; an unreadable file always differs.
    """
    if not path.exists():
        return f"is gone, and {promised.rows} rows were promised" if promised.rows else ""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            return difference(lambda query, values: connection.execute(query, values).fetchall(), promised)
    except sqlite3.Error as error:
        return f"cannot be read: {error}"


def _chain_at(read: Read, rows: int) -> tuple[str, str]:
    """Returns the history's id and the digest after `rows` rows, in hex; empty if the history has none."""
    # Converted to text by SQLite: an imported file may hold any type in its columns.
    chain = "SELECT row, lower(hex(digest)) FROM chain WHERE row IN (?, ?)"
    digests: dict[int, str] = dict(read(chain, (BEGINNING, rows - 1)))
    return digests.get(BEGINNING, ""), digests.get(rows - 1, "")


def copy_whole(path: Path, target: Path) -> None:
    """Copies a database, possibly in use, to a new file, as of a single moment. Blocks.

    Raises DataError for damage, DiskFullError.
    """
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            # The copy is a single file, without a write-ahead log.
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        if error.sqlite_errorname in _NO_SPACE:
            raise DiskFullError(
                "no space for a copy of it", where=str(path), fix="free space, and repeat this"
            ) from error
        raise DataError(str(error), where=str(path), fix="put the newest copy of the file back") from error


def promises(spec: ExperimentSpec, offers: Mapping[int, TasksOffered]) -> dict[Path, TasksOffered]:
    """Returns the newest offer of every serving stage, by the folder of the history; an offer of 0 rows if there was
    none.
    """
    return {
        Path(stage.taskset.path): offers.get(index, TasksOffered(stage=index, rows=0))
        for index, stage in enumerate(spec.stages)
        if stage.serving is not None and stage.taskset is not None
    }
