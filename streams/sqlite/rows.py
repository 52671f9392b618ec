"""Rows of one partition, read and checked, and the form in which a value lies in its row.

A value is stored as it was appended, compressed, or without its payload. A page holds 16 KiB, and a row of more than
half of it would leave the rest empty. So longer values are compressed, by snappy, which takes some ten microseconds;
where that is not enough for two rows to share a page, by zstd, which takes ten times as long. What cannot be
compressed stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import apsw
import cramjam
import xxhash

from rftd.ops.errors import LogCorruptError
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.schema import Statements

SNAPPY: Final = 1
"""The bytes are a raw snappy block."""
THIN: Final = 2
"""The payload was dropped: the value names its arrays by their sha256, and is not what the hash chain covers."""
ZSTD: Final = 4
"""The bytes are a zstd frame."""
_FORMS: Final = (0, SNAPPY, ZSTD, THIN, THIN | SNAPPY, THIN | ZSTD)

_COMPRESS_FROM_BYTES: Final = 4096
"""The smallest value that is compressed: several shorter ones share a page as they are."""
_COMPRESS_TO_BYTES: Final = 64 * 1024
"""Longer values continue on pages of their own, of which they fill most."""
_HALF_PAGE_BYTES: Final = 7900
"""The longest value of which two rows still share a page of 16 KiB, beside their heads and sums."""
_WHOLE_PAGE_BYTES: Final = 14 * 1024
"""The longest value that is worth trying to bring below half a page; a longer one takes a second page anyway."""
_WORTH_IT: Final = 0.9
"""The largest share of its size to which a value may shrink; what snappy leaves larger, zstd hardly shrinks either."""
_ZSTD_LEVEL: Final = 1


def packed(value: bytes, *, thin: bool = False) -> tuple[bytes, int]:
    """The bytes for the row, and their form."""
    form = THIN if thin else 0
    if not _COMPRESS_FROM_BYTES <= len(value) <= _COMPRESS_TO_BYTES:
        return value, form
    small = bytes(cramjam.snappy.compress_raw(value))
    if len(small) > _WORTH_IT * len(value):
        return value, form
    if _HALF_PAGE_BYTES < len(small) < _WHOLE_PAGE_BYTES:
        smaller = bytes(cramjam.zstd.compress(value, _ZSTD_LEVEL))
        if len(smaller) <= _HALF_PAGE_BYTES:
            return smaller, form | ZSTD
    return small, form | SNAPPY


def unpacked(stored: bytes, form: int) -> bytes:
    """The value of a row. Raises ValueError for bytes that are none of that form."""
    if form not in _FORMS:
        raise ValueError(f"the row's form is {form}, which this release does not know")
    if not form & (SNAPPY | ZSTD):
        return stored
    try:
        if form & SNAPPY:
            # The length comes from the row: a damaged one must not make this process reserve gigabytes.
            size_bytes = cramjam.snappy.decompress_raw_len(stored)
            if size_bytes > _COMPRESS_TO_BYTES:
                raise ValueError(f"the row would become {size_bytes} bytes, more than are ever compressed")
            return bytes(cramjam.snappy.decompress_raw(stored))
        value = bytearray(_COMPRESS_TO_BYTES)  # a frame that holds more is refused, not grown for
        size_bytes = cramjam.zstd.decompress_into(stored, value)
        return bytes(value[:size_bytes])
    except cramjam.DecompressionError as error:
        raise ValueError(f"the row cannot be decompressed: {error}") from error


def row_sum(id: bytes, chain: bytes, head: bytes, stored: bytes, form: int) -> bytes:
    """The fast checksum (xxh3, 8 bytes) that stands in each row, over the bytes as they are stored."""
    if form:  # rows of releases before compression have form 0 and a sum without it
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
    """The records from `start` on up to both limits, but at least one if there is one.

    `end` is the head that the caller knows of: raises LogCorruptError for a record that is missing below it, and for
    one that is damaged.
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
        rows = checked_rows(connection, Statements(part_id), partition, start, max_records)
        for _, record in rows:
            size += len(record.head) + len(record.value)
            if found and size > max_size_bytes:
                break
            found.append(record)
        else:
            reached = start + len(found)
            if len(found) < max_records and reached < end:
                raise damaged(partition, reached, f"is missing: the log ended before {end} when it was last written")
        rows.close()  # a cursor left open would keep the read transaction, and the write-ahead log could not be emptied
    return found
