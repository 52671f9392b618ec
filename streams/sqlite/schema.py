"""Tables, pragmas and statements of the embedded log.

One table per partition, for appends always at the right edge of a b-tree and reads in one range scan, and one table of
ids, for recognising repeated appends; a partition's records from `indexed.off` on have their ids in their rows only.
`form` is the stored form of a value (see `rftd.streams.sqlite.rows`). `sum` is xxh3-64 over id ‖ chain ‖ head ‖ value
as stored ‖ form, if not 0, and is compared at each read; `end_size` counts the bytes of the partition up to and
including the record, as they were appended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from rftd.ops.errors import ConflictError, LogCorruptError
from rftd.streams.log.chain import Mark
from rftd.streams.log.topics import Partition

FILE_NAME: Final = "log.db"
"""Name of the database's file in the log's folder."""
APPLICATION_ID: Final = 0x52465444
"""Mark of the database's file: `RFTD`."""
SCHEMA_VERSION: Final = 4
"""Version of the layout and of the meaning of events; raised whenever a release cannot read earlier logs."""
PAGE_SIZE_BYTES: Final = 16384
"""Size of a page of the database."""
CACHE_SIZE_KIB: Final = 8 * 1024
"""Page cache of the append-only writing connection; the operating system caches the ids it reads."""
CHECKPOINT_PAGES: Final = 1000
"""Pages of the write-ahead log from which a separate thread copies them into the database."""
CHECKPOINT_REST_PAGES: Final = 200
"""Pages copied by one pass of the separate thread at or below which it stops, and leaves the newer pages to the writer.
"""
CHECKPOINT_FORCED_PAGES: Final = 8 * CHECKPOINT_PAGES
"""Pages from which the writer copies all of them itself, unless a reader prevents it: the writer never waits."""
BUSY_TIMEOUT_MS: Final = 5000
"""Maximum milliseconds for which a writing transaction waits for another one; emptying the write-ahead log
never waits.
"""
GIVEN_BACK_PAGES: Final = 256
"""Maximum number of unused pages returned to the file system by one call of `Store.give_back`."""
IDS_PER_INDEXING: Final = 8192
"""Number of ids collected in memory before they are moved to the table `ids`."""
PLACE_BITS: Final = 44
"""A location in `ids` is partition id << 44 | offset."""

ROW_WIDTH: Final = 8
"""Number of columns of a record's row."""
ROWS_PER_STATEMENT: Final = 32
"""Rows of one INSERT, and ids of one look-up: each statement hands Python's lock over, so fewer are better."""

CREATE: Final = """
    CREATE TABLE part(id INTEGER PRIMARY KEY, stream TEXT NOT NULL, number INTEGER NOT NULL,
        start_off INTEGER NOT NULL, start_chain BLOB NOT NULL, start_size INTEGER NOT NULL, UNIQUE(stream, number));
    CREATE TABLE ids(id BLOB PRIMARY KEY, place INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE indexed(part INTEGER PRIMARY KEY, off INTEGER NOT NULL);
"""
"""Creates the tables shared by all partitions."""
_CREATE_ROWS: Final = """
    CREATE TABLE ROWS(off INTEGER PRIMARY KEY, id BLOB NOT NULL, chain BLOB NOT NULL, sum BLOB NOT NULL,
        end_size INTEGER NOT NULL, head BLOB NOT NULL, value BLOB NOT NULL, form INTEGER NOT NULL);
"""
"""Creates the table of one partition's records."""

_PARTS: Final = "SELECT id, stream, number, start_off, start_chain, start_size FROM part ORDER BY id"
"""Reads all partitions."""
PART: Final = "SELECT id, start_off FROM part WHERE stream = ? AND number = ?"
"""Reads id and first offset of a partition."""
START: Final = "SELECT start_off, start_chain FROM part WHERE stream = ? AND number = ?"
"""Reads the first retained offset of a partition, and the chain before it."""
ADD_PART: Final = "INSERT INTO part VALUES(?, ?, ?, 0, ?, 0)"
"""Adds a partition."""
FIND_IDS: Final = tuple(
    "SELECT id, place FROM ids WHERE id IN (MANY)".replace("MANY", ", ".join("?" * count))
    for count in range(ROWS_PER_STATEMENT + 1)
)
"""Statements finding several ids, by the number of ids."""
ADD_ID: Final = "INSERT OR IGNORE INTO ids VALUES(?, ?)"
"""Adds an id to the index."""
ADD_IDS: Final = "INSERT OR IGNORE INTO ids VALUES" + ", ".join(["(?, ?)"] * ROWS_PER_STATEMENT)
"""Adds `ROWS_PER_STATEMENT` ids to the index."""
REMOVE_ID: Final = "DELETE FROM ids WHERE id = ?"
"""Removes an id from the index."""
_INDEXED: Final = "SELECT part, off FROM indexed"
"""Reads the first offset of each partition whose id is not in the index."""
MOVE_INDEXED: Final = "INSERT OR REPLACE INTO indexed VALUES(?, ?)"
"""Sets the first offset of a partition whose id is not in the index."""
MOVE_START: Final = "UPDATE part SET start_off = ?, start_chain = ?, start_size = ? WHERE id = ?"
"""Sets the first retained offset of a partition, the chain before it, and the bytes below it."""


_RANGE: Final = "SELECT off, id, chain, sum, head, value, form FROM ROWS WHERE off >= ? ORDER BY off LIMIT ?"
"""Reads a range of records."""


class Statements:
    """The statements over the rows of one partition; cheap to create, therefore not cached."""

    def __init__(self, part_id: int) -> None:
        """Creates the statements for the table of the partition `part_id`."""
        row = "(" + ", ".join("?" * ROW_WIDTH) + ")"

        def over(template: str) -> str:
            return template.replace("ROWS", f"p{part_id}")

        self.create = over(_CREATE_ROWS)
        self.add_one = over("INSERT INTO ROWS VALUES") + row
        self.add_many = over("INSERT INTO ROWS VALUES") + ", ".join([row] * ROWS_PER_STATEMENT)
        self.last = over("SELECT off, chain, end_size FROM ROWS ORDER BY off DESC LIMIT 1")
        self.at = over("SELECT off, chain, end_size FROM ROWS WHERE off = ?")
        self.range = over(_RANGE)
        self.remove_one = over("DELETE FROM ROWS WHERE off = ?")
        self.ids_below = over("SELECT id FROM ROWS WHERE off < ?")
        self.ids_from = over("SELECT id, off FROM ROWS WHERE off >= ?")
        self.remove_below = over("DELETE FROM ROWS WHERE off < ?")


class StoredPart(NamedTuple):
    """A partition as stored; `start` is its first retained offset with the chain before it, `head` the next offset with
    its chain.
    """

    id: int
    """Number of the partition in this database."""
    partition: Partition
    """The partition."""
    start: Mark
    """First retained offset, with the chain before it."""
    start_size: int
    """Bytes of the records below `start`."""
    head: Mark
    """Next offset, with the chain of the last record."""
    end_size: int
    """Bytes of all records, the deleted ones included."""


def stored_parts(connection: apsw.Connection) -> list[StoredPart]:
    """Reads every partition with its head. Raises apsw.Error, TypeError or ValueError for a damaged file."""
    parts: list[StoredPart] = []
    rows: list[Any] = connection.execute(_PARTS).fetchall()
    for id, stream, number, offset, chain, size in rows:
        start = Mark(offset, chain)
        head = start
        end_size = size
        last_row: Any = connection.execute(Statements(id).last).get
        if last_row:
            head = Mark(last_row[0] + 1, last_row[1])
            end_size = last_row[2]
        parts.append(StoredPart(id, Partition(stream, number), start, size, head, end_size))
    return parts


def indexed_ends(connection: apsw.Connection) -> dict[int, int]:
    """Returns, by partition id, the offset below which all records' ids are in the table `ids`; partitions without any
    are absent.
    """
    rows: list[Any] = connection.execute(_INDEXED).fetchall()
    return dict(rows)


def connect_writer(path: Path) -> apsw.Connection:
    """Opens the writing connection, durable at each commit; creates the file if there is none.

    Raises as `check_schema`; a file of another version is left unchanged.
    """
    connection = apsw.Connection(str(path), statementcachesize=256)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if connection.pragma("application_id") == APPLICATION_ID:
            check_schema(connection, path)  # before any pragma: setting one would write into a file of another version
        # The order matters: page size and vacuum mode of a new file are fixed by its first write, the switch to WAL
        # mode.
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.pragma("journal_mode", "wal")
        # NORMAL, SQLite's usual choice with WAL, syncs at checkpoints only: acknowledged commits would be lost with the
        # power. FULL syncs the write-ahead log at each commit.
        connection.pragma("synchronous", "full")
        # By default the commit passing 1,000 pages would do the checkpoint itself, in front of its acknowledgement.
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma(
            "journal_size_limit", 64 * 1024 * 1024
        )  # the file is cut to this size when SQLite starts it anew
        connection.pragma("cache_size", -CACHE_SIZE_KIB)  # SQLite reads a negative number as KiB, not pages
        # SQLite returns the mode in effect, and does not fail: some file systems do not support WAL.
        if mode != "wal" or connection.pragma("synchronous") != 2:
            raise ConflictError(
                f"SQLite runs in journal mode {mode!r} here; the log needs WAL with synchronous=FULL",
                where=str(path),
                fix="choose a data folder on a local disk",
            )
        _ensure_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_checkpointer(path: Path) -> apsw.Connection:
    """Opens a connection for moving the write-ahead log into the database."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(0)
    # A setting of the connection, not of the file: with it, a checkpoint syncs the database before the write-ahead log
    # may be overwritten.
    connection.pragma("synchronous", "full")
    return connection


def connect_reader(path: Path) -> apsw.Connection:
    """Opens a read-only connection; it neither blocks the writer nor checkpoints."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=256)
    try:
        connection.set_busy_timeout(5000)
        check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_schema(connection: apsw.Connection, path: Path) -> None:
    """Raises LogCorruptError or ConflictError unless the file is a log readable by this release."""
    version = connection.pragma("user_version")
    # The id lies in the first page: a damaged page is reported here, before its version number misleads people.
    if connection.pragma("application_id") != APPLICATION_ID:
        raise LogCorruptError(
            "the file is no event log of rftd, or its first page is damaged",
            where=str(path),
            fix="restore the data folder from a backup, or choose another folder",
        )
    if version != SCHEMA_VERSION:
        raise ConflictError(
            f"the log's schema is version {version}; this release reads version {SCHEMA_VERSION}",
            where=str(path),
            fix="use the release of rftd that wrote it",
        )


def _ensure_schema(connection: apsw.Connection, path: Path) -> None:
    """Creates the tables of a new file; raises an error for another program's file, or another version."""
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if tables == 0 and connection.pragma("application_id") == 0:
        with connection:  # one transaction: a crash leaves an empty file, treated as new by the next start
            connection.execute(CREATE)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", SCHEMA_VERSION)
    check_schema(connection, path)
