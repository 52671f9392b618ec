"""Rows of one partition, read and checked, and the stored forms of a value.

A value is stored as appended, compressed, or without its payload. A page holds 16 KiB, and a row of more than half of
it would leave the rest empty. Values of 4 to 64 KiB are therefore compressed: by snappy, in some ten microseconds; if
two rows still cannot share a page, by zstd, in ten times as long. Incompressible values stay unchanged.
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
"""The payload was dropped: the value names its arrays by their sha256, and is not the value covered by the hash chain.
"""
ZSTD: Final = 4
"""The bytes are a zstd frame."""
_FORMS: Final = (0, SNAPPY, ZSTD, THIN, THIN | SNAPPY, THIN | ZSTD)
"""The known stored forms of a value."""

_COMPRESS_FROM_BYTES: Final = 4096
"""Minimum size at which a value is compressed: several shorter ones share a page uncompressed."""
_COMPRESS_TO_BYTES: Final = 64 * 1024
"""Maximum size at which a value is compressed: longer ones continue on overflow pages, and fill most of those."""
_HALF_PAGE_BYTES: Final = 7900
"""Maximum size of a value whose row still shares a page of 16 KiB with another, beside their heads and sums."""
_WHOLE_PAGE_BYTES: Final = 14 * 1024
"""Size of a snappy block from which zstd is not tried: a row so long would need a second page, or a page of its own,
anyway.
"""
_WORTH_IT: Final = 0.9
"""Maximum ratio of snappy's size to the original; above it, the value is stored uncompressed."""
_ZSTD_LEVEL: Final = 1
"""Level of compression by zstd."""


def packed(value: bytes, *, thin: bool = False) -> tuple[bytes, int]:
    """Encodes a value for its row, compressed if worthwhile; returns the stored bytes and their form.

    `thin` is True for a value without its payload.
    """
    form = THIN if thin else 0
    if not _COMPRESS_FROM_BYTES <= len(value) <= _COMPRESS_TO_BYTES:
        return value, form
    snappy_block = bytes(cramjam.snappy.compress_raw(value))
    if len(snappy_block) > _WORTH_IT * len(value):
        return value, form
    if _HALF_PAGE_BYTES < len(snappy_block) < _WHOLE_PAGE_BYTES:
        zstd_frame = bytes(cramjam.zstd.compress(value, _ZSTD_LEVEL))
        if len(zstd_frame) <= _HALF_PAGE_BYTES:
            return zstd_frame, form | ZSTD
    return snappy_block, form | SNAPPY


def unpacked(stored: bytes, form: int) -> bytes:
    """Decodes a row's stored bytes into the value. Raises ValueError for bytes not valid in that form."""
    if form not in _FORMS:
        raise ValueError(f"the row's form is {form}, unknown to this release")
    if not form & (SNAPPY | ZSTD):
        return stored
    try:
        if form & SNAPPY:
            # The length comes from the row: a damaged one must not make this process reserve gigabytes.
            size_bytes = cramjam.snappy.decompress_raw_len(stored)
            if size_bytes > _COMPRESS_TO_BYTES:
                raise ValueError(f"the row would become {size_bytes} bytes, more than any compressed value")
            return bytes(cramjam.snappy.decompress_raw(stored))
        buffer = bytearray(
            _COMPRESS_TO_BYTES
        )  # a frame with a larger content is refused, and no memory is allocated for it
        size_bytes = cramjam.zstd.decompress_into(stored, buffer)
        return bytes(buffer[:size_bytes])
    except cramjam.DecompressionError as error:
        raise ValueError(f"the row cannot be decompressed: {error}") from error


def row_sum(id: bytes, chain: bytes, head: bytes, stored: bytes, form: int) -> bytes:
    """Computes the fast checksum (xxh3, 8 bytes) stored in each row, over the bytes as stored."""
    if form:  # rows of releases before compression have form 0, and a sum without the form
        return xxhash.xxh3_64_digest(b"".join((id, chain, head, stored, form.to_bytes(1, "little"))))
    return xxhash.xxh3_64_digest(b"".join((id, chain, head, stored)))


def damaged(partition: Partition, offset: int, fault: str) -> LogCorruptError:
    """Builds the error of a damaged record; `fault` describes the damage."""
    return LogCorruptError(
        f"{partition}@{offset} {fault}",
        where=f"{partition}@{offset}",
        fix="restore the data folder from a backup; run `rftd verify` to see what else is damaged",
    )


_UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.TooBigError, TypeError, ValueError, OverflowError)
"""Errors raised for a damaged row: a flipped bit in its header turns bytes into a number or text, and raises
TypeError or ValueError.
"""


def checked_rows(
    connection: apsw.Connection, statements: Statements, partition: Partition, start: int, limit: int
) -> Generator[tuple[bytes, Record], None, None]:
    """Yields (id, record) from offset `start` on, gapless and with valid checksums. Raises LogCorruptError."""
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
    """Returns the records from `start` on up to both limits, but at least one if any exists.

    `end` is the head known to the caller: raises LogCorruptError for a record missing below it, and for a damaged one.
    """
    records: list[Record] = []
    size = 0
    with connection:  # one snapshot: a truncation between the two statements would look like a gap
        part_row = connection.execute(schema.PART, tuple(partition)).get
        if part_row is None:
            if end > start:
                raise damaged(partition, start, "is missing, as is its whole partition")
            return []
        part_id, first = part_row
        start = max(start, first)
        rows = checked_rows(connection, Statements(part_id), partition, start, max_records)
        for _, record in rows:
            size += len(record.head) + len(record.value)
            if records and size > max_size_bytes:
                break
            records.append(record)
        else:
            reached = start + len(records)
            if len(records) < max_records and reached < end:
                raise damaged(partition, reached, f"is missing: the log ended before {end} when it was last written")
        rows.close()  # an open cursor would keep the read transaction, and the write-ahead log could not be emptied
    return records
