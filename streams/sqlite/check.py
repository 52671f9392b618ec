"""Verification of the embedded log: of the newest bytes at each start, and of the complete index of ids by `rftd
verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from rftd.ops import limits
from rftd.ops.errors import LogCorruptError
from rftd.streams.log.chain import Heads, Mark, check_mark, different, link
from rftd.streams.sqlite import heads_file, schema
from rftd.streams.sqlite.errors import translate
from rftd.streams.sqlite.ids import place_of, split_place
from rftd.streams.sqlite.rows import checked_rows, damaged
from rftd.streams.sqlite.schema import Statements, StoredPart

_EVERY = 1 << 62
"""An offset beyond every record's."""


class Scan(msgspec.Struct, frozen=True):
    """Result of a scan that found no damage: number, size and heads of the records read."""

    records: int
    """Number of records."""
    size_bytes: int
    """Size of the records."""
    heads: Heads
    """Next offset of each partition, with the chain of its last record."""


def verify_newest(
    connection: apsw.Connection,
    path: Path,
    size_bytes: int = limits.STARTUP_VERIFY_SIZE_BYTES,
    *,
    refuse_loss: bool = True,
) -> Scan:
    """Recomputes the hash chain over the newest `size_bytes` bytes, shared out over the partitions.

    In a file of at most `size_bytes`, SQLite also checks its own structure. With `refuse_loss`, the heads are compared
    with the ones remembered in `log.heads`. Raises LogCorruptError or LogLossError with the position.
    """
    try:
        pages = connection.pragma("page_count")
        page_size = connection.pragma("page_size")
        # SQLite checks its own structure page by page, over the whole file: worth the time at a start for a small file
        # only.
        if pages * page_size <= size_bytes:
            _integrity(connection, path)
        parts = sorted(schema.stored_parts(connection), key=lambda part_row: part_row.end_size - part_row.start_size)
        records = size = 0
        heads: Heads = {}
        for index, part_row in enumerate(parts):  # smallest first: the unused part of a share goes to the larger ones
            share = max(0, size_bytes - size) // (len(parts) - index)
            start = _start_within(connection, part_row, share)
            scan = _verify(connection, part_row, start)
            heads |= scan.heads
            records += scan.records
            size += scan.size_bytes
        if refuse_loss:
            check_remembered(connection, heads_file.read_heads(path.with_name(heads_file.FILE_NAME)), heads)
    except (apsw.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    return Scan(records, size, heads)


def check_remembered(connection: apsw.Connection, remembered: Heads, heads: Heads) -> None:
    """Raises LogLossError if a remembered head is not among the file's records; `heads` are the present ones."""
    parts = {part_row.partition: part_row for part_row in schema.stored_parts(connection)} if remembered else {}
    for partition, mark in remembered.items():
        part_row = parts.get(partition)
        start = part_row.start if part_row else Mark(0, bytes(16))
        check_mark(partition, mark, head=heads.get(partition, start), start=start)
        if part_row is not None and mark.next_offset > start.next_offset:
            row = connection.execute(Statements(part_row.id).at, (mark.next_offset - 1,)).get
            if row is None or row[1] != mark.chain:
                raise different(partition, mark)


def _start_within(connection: apsw.Connection, part_row: StoredPart, size_bytes: int) -> int:
    """Finds the lowest offset with at most `size_bytes` bytes from there to the head; bisection by `end_size`."""
    floor = part_row.end_size - size_bytes
    low = part_row.start.next_offset
    high = part_row.head.next_offset
    if part_row.start_size >= floor:
        return low
    # `end_size` grows with the offset: a dozen rows locate the newest bytes, without reading every row.
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(Statements(part_row.id).at, (middle,)).get
        if row is None:
            raise damaged(part_row.partition, middle, "is missing")
        if row[2] < floor:
            low = middle + 1
        else:
            high = middle
    return min(low + 1, part_row.head.next_offset)


def _verify(connection: apsw.Connection, part_row: StoredPart, start: int) -> Scan:
    """Recomputes the chain from `start` to the head. Raises LogCorruptError."""
    partition = part_row.partition
    chain = part_row.start.chain
    if start > part_row.start.next_offset:
        previous_row = connection.execute(Statements(part_row.id).at, (start - 1,)).get
        if previous_row is None:
            raise damaged(partition, start - 1, "is missing")
        chain = previous_row[1]
    size = 0
    end = start
    for _, record in checked_rows(connection, Statements(part_row.id), partition, start, _EVERY):
        # The chain covers the payload already dropped from a thin record: its own link is taken as stored, under the
        # row's checksum, and the next link is checked against it.
        chain = record.chain if record.thin else link(chain, record.head, record.value)
        if chain != record.chain:
            raise damaged(partition, record.offset, "breaks the hash chain")
        end = record.offset + 1
        size += len(record.head) + len(record.value)
    if end != part_row.head.next_offset:
        raise damaged(partition, end, f"is missing: the log ends before {part_row.head.next_offset}")
    return Scan(end - start, size, {partition: Mark(end, chain)})


def _integrity(connection: apsw.Connection, path: Path) -> None:
    """Raises LogCorruptError if SQLite finds the file's structure damaged."""
    verdict = connection.execute("PRAGMA quick_check(1)").get
    if verdict != "ok":
        raise LogCorruptError(
            f"the structure of the log's file is damaged: {verdict}",
            where=str(path),
            fix="restore the data folder from a backup; `rftd verify` names the first damaged record",
        )


_IDS_PER_LOOKUP: Final = 8192
"""Number of records whose ids are looked up together."""
_ERRORS: Final = 20
"""Maximum number of SQLite's findings reported: a damaged page yields hundreds."""


def wrong_ids(folder: Path) -> Iterator[str]:
    """Yields the faults of the index of ids and of the file's structure, in words, from one snapshot; a daemon may be
    running.

    A record missing in the index would be stored again by a repeated append, and an id indexed for another record would
    answer with the wrong position. Blocks. Raises LogCorruptError for an unreadable file.
    """
    path = folder / schema.FILE_NAME
    try:
        connection = schema.connect_reader(path)
    except (apsw.Error, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    try:
        connection.execute("BEGIN")
        ends = schema.indexed_ends(connection)
        parts = {part_row.id: part_row for part_row in schema.stored_parts(connection)}
        expected = 0
        for part_row in parts.values():
            end = min(ends.get(part_row.id, 0), part_row.head.next_offset)
            expected += max(0, end - part_row.start.next_offset)
            yield from _missing(connection, part_row, end)
        indexed_count: Any = connection.execute("SELECT count(*) FROM ids").get
        if indexed_count > expected:  # only then: looking each id up reads the log in random order
            yield from _foreign(connection, parts)
        for (finding,) in connection.execute(f"PRAGMA integrity_check({_ERRORS})"):
            if finding != "ok":
                yield f"the structure of {path} is damaged: {finding}"
    except (apsw.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    finally:
        connection.close(True)


def _missing(connection: apsw.Connection, part_row: StoredPart, end: int) -> Iterator[str]:
    """Yields the records below `end` missing from the index or indexed at another position; a run is one line."""
    first_offset = last_offset = -1
    start = part_row.start.next_offset
    statement = f"SELECT id, off FROM p{part_row.id} WHERE off >= ? AND off < ? ORDER BY off LIMIT {_IDS_PER_LOOKUP}"  # noqa: S608
    while start < end and (rows := list(connection.execute(statement, (start, end)))):
        start = rows[-1][1] + 1
        locations = _places(connection, sorted(id for id, _ in rows))
        for id, offset in rows:
            location = locations.get(id)
            if location == place_of(part_row.id, offset):
                continue
            if location is not None:
                part_id, indexed_at = split_place(location)
                yield f"{part_row.partition}@{offset}: the index has its id for record {indexed_at} of part {part_id}"
            elif offset == last_offset + 1 and first_offset >= 0:
                last_offset = offset
            else:
                yield from _stretch(part_row, first_offset, last_offset)
                first_offset = last_offset = offset
    yield from _stretch(part_row, first_offset, last_offset)


def _stretch(part_row: StoredPart, first: int, last: int) -> Iterator[str]:
    """Yields a finding for records `first` to `last` missing in the index of ids; nothing if `first` is negative."""
    if first >= 0:
        more = f" to {last}" if last > first else ""
        yield f"{part_row.partition}@{first}{more} is not in the index of ids: a repeated append would be stored again"


def _places(connection: apsw.Connection, ids: list[bytes]) -> dict[bytes, int]:
    """Returns the packed locations of those of these ids that are in the index."""
    locations: dict[bytes, int] = {}
    for start in range(0, len(ids), schema.ROWS_PER_STATEMENT):
        chunk = ids[start : start + schema.ROWS_PER_STATEMENT]
        rows: list[Any] = connection.execute(schema.FIND_IDS[len(chunk)], chunk).fetchall()
        locations.update(rows)
    return locations


def _foreign(connection: apsw.Connection, part_rows: dict[int, StoredPart]) -> Iterator[str]:
    """Yields the ids indexed for a record with another id, or for no record."""
    for id, location in connection.execute("SELECT id, place FROM ids"):
        number, offset = split_place(location)
        part_row = part_rows.get(number)
        row: Any = None
        if part_row is not None:
            row = connection.execute(f"SELECT id FROM p{number} WHERE off = ?", (offset,)).get  # noqa: S608
        if row != id:
            where = f"{part_row.partition}@{offset}" if part_row is not None else f"record {offset} of no partition"
            yield f"the index has id {id.hex()} for {where}, which has another id"
