"""One partition's rows, read and checked."""

from __future__ import annotations

from collections.abc import Generator

import apsw
import xxhash

from rftd.ops.errors import LogCorruptError
from rftd.streams.backends import sqlite_schema as schema
from rftd.streams.backends.sqlite_schema import Statements
from rftd.streams.backends.sqlite_values import THIN, unpacked
from rftd.streams.envelope import Record
from rftd.streams.topics import Partition


def row_sum(id: bytes, chain: bytes, head: bytes, stored: bytes, form: int) -> bytes:
    """The fast checksum that stands in each row; rows of older releases have form 0."""
    if form:
        return xxhash.xxh3_64_digest(b"".join((id, chain, head, stored, form.to_bytes(1, "little"))))
    return xxhash.xxh3_64_digest(b"".join((id, chain, head, stored)))


def damaged(partition: Partition, offset: int, what: str) -> LogCorruptError:
    """The error for a record that is not what was written."""
    return LogCorruptError(
        f"{partition}@{offset} {what}",
        where=f"{partition}@{offset}",
        fix="restore the data folder from a backup; run `rftd verify` to see what else is damaged",
    )


_UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.TooBigError, TypeError, ValueError, OverflowError)
# A flipped bit in a row's header turns bytes into a number or text: TypeError, ValueError.


def checked_rows(
    connection: apsw.Connection, statements: Statements, partition: Partition, start: int, limit: int
) -> Generator[tuple[bytes, Record], None, None]:
    """(id, record) from offset `start` on, each compared with its checksum and gapless. Raises LogCorruptError."""
    expected = start
    cursor = connection.cursor()
    try:
        for offset, id, chain, total, head, stored, form in cursor.execute(statements.range, (start, limit)):
            if offset != expected:
                raise damaged(partition, expected, f"is missing: the next record is {offset}")
            if row_sum(id, chain, head, stored, form) != total:
                raise damaged(partition, offset, "does not match its checksum")
            expected += 1
            yield id, Record(partition, offset, chain, head, unpacked(stored, form), bool(form & THIN))
    except _UNREADABLE as error:
        raise damaged(partition, expected, f"cannot be read: {error}") from error
    finally:
        cursor.close(True)


def read_rows(
    connection: apsw.Connection, partition: Partition, start: int, end: int, max_records: int, max_size_bytes: int
) -> list[Record]:
    """At most so many records from `start` on, but at least one if there is one. Raises LogCorruptError.

    `end` is the head that the caller knows of: a record missing below it is damage.
    """
    found: list[Record] = []
    size = 0
    with connection:  # one snapshot: a truncation between the two statements would look like a gap
        part = connection.execute(schema.PART, tuple(partition)).get
        if part is None:
            if end > start:
                raise damaged(partition, start, "is missing, as is its whole partition")
            return []
        part_id, first = part
        start = max(start, first)
        rows = checked_rows(connection, schema.statements_of(connection, part_id), partition, start, max_records)
        for _, record in rows:
            size += len(record.head) + len(record.value)
            if found and size > max_size_bytes:
                break
            found.append(record)
        else:
            reached = start + len(found)
            if len(found) < max_records and reached < end:
                raise damaged(partition, reached, f"is missing: the log ended before {end} when it was last written")
        rows.close()
    return found
