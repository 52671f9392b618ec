"""Verification of the embedded log: of the newest bytes at start-up, and of the whole index of ids offline."""

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


class Scan(msgspec.Struct, frozen=True):
    """The records that a scan has seen, all of them intact."""

    records: int
    size_bytes: int
    heads: Heads


def verify_newest(
    connection: apsw.Connection,
    path: Path,
    size_bytes: int = limits.STARTUP_VERIFY_SIZE_BYTES,
    *,
    refuse_loss: bool = True,
) -> Scan:
    """Recomputes the hash chain over the newest `size_bytes` bytes, shared out over the partitions.

    Also compares the file's size with what SQLite believes, and, to `refuse_loss`, the heads with those that
    `log.heads` remembers. Raises LogCorruptError or LogLossError with the position.
    """
    try:
        pages = connection.pragma("page_count")
        page_size = connection.pragma("page_size")
        # SQLite checks its own structure page by page, over the whole file: only a small one is worth that at a start.
        if pages * page_size <= size_bytes:
            _integrity(connection, path)
        parts = sorted(schema.stored_parts(connection), key=lambda part: part.end_size - part.start_size)
        records = size = 0
        heads: Heads = {}
        for index, part in enumerate(parts):  # smallest first: what it leaves of its share goes to the others
            share = max(0, size_bytes - size) // (len(parts) - index)
            start = _start_within(connection, part, share)
            seen = _verify(connection, part, start)
            heads |= seen.heads
            records += seen.records
            size += seen.size_bytes
        if refuse_loss:
            check_remembered(connection, heads_file.read_heads(path.with_name(heads_file.FILE_NAME)), heads)
    except (apsw.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    return Scan(records, size, heads)


def check_remembered(connection: apsw.Connection, remembered: Heads, heads: Heads) -> None:
    """Compares remembered heads with the rows. Raises LogLossError."""
    parts = {part.partition: part for part in schema.stored_parts(connection)} if remembered else {}
    for partition, mark in remembered.items():
        part = parts.get(partition)
        start = part.start if part else Mark(0, bytes(16))
        check_mark(partition, mark, head=heads.get(partition, start), start=start)
        if part is not None and mark.next_offset > start.next_offset:
            row = connection.execute(Statements(part.id).at, (mark.next_offset - 1,)).get
            if row is None or row[1] != mark.chain:
                raise different(partition, mark)


def _start_within(connection: apsw.Connection, part: StoredPart, size_bytes: int) -> int:
    """The smallest offset from which on the partition holds at most `size_bytes` bytes; bisection by `end_size`."""
    floor = part.end_size - size_bytes
    low = part.start.next_offset
    high = part.head.next_offset
    if part.start_size >= floor:
        return low
    # `end_size` grows with the offset, so a dozen rows tell where the newest bytes begin, and not every one is read.
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(Statements(part.id).at, (middle,)).get
        if row is None:
            raise damaged(part.partition, middle, "is missing")
        if row[2] < floor:
            low = middle + 1
        else:
            high = middle
    return min(low + 1, part.head.next_offset)


def _verify(connection: apsw.Connection, part: StoredPart, start: int) -> Scan:
    """Recomputes the chain from `start` to the head. Raises LogCorruptError."""
    partition = part.partition
    chain = part.start.chain
    if start > part.start.next_offset:
        before = connection.execute(Statements(part.id).at, (start - 1,)).get
        if before is None:
            raise damaged(partition, start - 1, "is missing")
        chain = before[1]
    size = 0
    end = start
    for _, record in checked_rows(connection, Statements(part.id), partition, start, _EVERY):
        # The chain covers the payload that a thin record no longer has: its own link is taken as it stands, under the
        # row's checksum, and the next one is checked against it.
        chain = record.chain if record.thin else link(chain, record.head, record.value)
        if chain != record.chain:
            raise damaged(partition, record.offset, "breaks the hash chain")
        end = record.offset + 1
        size += len(record.head) + len(record.value)
    if end != part.head.next_offset:
        raise damaged(partition, end, f"is missing: the log ends before {part.head.next_offset}")
    return Scan(end - start, size, {partition: Mark(end, chain)})


def _integrity(connection: apsw.Connection, path: Path) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").get
    if verdict != "ok":
        raise LogCorruptError(
            f"the structure of the log's file is damaged: {verdict}",
            where=str(path),
            fix="restore the data folder from a backup; `rftd verify` names the first damaged record",
        )


_AT_ONCE: Final = 8192
"""The records whose ids are looked up together."""
_ERRORS: Final = 20
"""The findings of SQLite that are told at most: a damaged page yields hundreds."""


def wrong_ids(folder: Path) -> Iterator[str]:
    """The faults of the index of ids and of the file's structure, in words; one snapshot, beside a daemon too.

    A record that is missing in the index would be taken again if it were appended again, and one that stands there for
    another would answer with its place. Blocks. Raises LogCorruptError for a file that cannot be read.
    """
    path = folder / schema.FILE_NAME
    try:
        connection = schema.connect_reader(path)
    except (apsw.Error, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    try:
        connection.execute("BEGIN")
        ends = schema.indexed_ends(connection)
        parts = {part.id: part for part in schema.stored_parts(connection)}
        expected = 0
        for part in parts.values():
            end = min(ends.get(part.id, 0), part.head.next_offset)
            expected += max(0, end - part.start.next_offset)
            yield from _missing(connection, part, end)
        found: Any = connection.execute("SELECT count(*) FROM ids").get
        if found > expected:  # only then: to look each id up reads the log in random order
            yield from _foreign(connection, parts)
        for (line,) in connection.execute(f"PRAGMA integrity_check({_ERRORS})"):
            if line != "ok":
                yield f"the structure of {path} is damaged: {line}"
    except (apsw.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    finally:
        connection.close(True)


def _missing(connection: apsw.Connection, part: StoredPart, end: int) -> Iterator[str]:
    """The records below `end` that the index lacks, or has at another place; a stretch of them is one line."""
    first = last = -1
    start = part.start.next_offset
    statement = f"SELECT id, off FROM p{part.id} WHERE off >= ? AND off < ? ORDER BY off LIMIT {_AT_ONCE}"  # noqa: S608
    while start < end and (rows := list(connection.execute(statement, (start, end)))):
        start = rows[-1][1] + 1
        places = _places(connection, sorted(id for id, _ in rows))
        for id, offset in rows:
            place = places.get(id)
            if place == place_of(part.id, offset):
                continue
            if place is not None:
                number, other = split_place(place)
                yield f"{part.partition}@{offset}: the index has its id for record {other} of part {number}"
            elif offset == last + 1 and first >= 0:
                last = offset
            else:
                yield from _stretch(part, first, last)
                first = last = offset
    yield from _stretch(part, first, last)


def _stretch(part: StoredPart, first: int, last: int) -> Iterator[str]:
    if first >= 0:
        more = f" to {last}" if last > first else ""
        yield f"{part.partition}@{first}{more} is not in the index of ids: an append repeated would be taken again"


def _places(connection: apsw.Connection, ids: list[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for start in range(0, len(ids), schema.ROWS_AT_ONCE):
        some = ids[start : start + schema.ROWS_AT_ONCE]
        rows: list[Any] = connection.execute(schema.FIND_IDS[len(some)], some).fetchall()
        found.update(rows)
    return found


def _foreign(connection: apsw.Connection, parts: dict[int, StoredPart]) -> Iterator[str]:
    """The ids that stand in the index for a record that has another id, or for none."""
    for id, place in connection.execute("SELECT id, place FROM ids"):
        number, offset = split_place(place)
        part = parts.get(number)
        row: Any = None
        if part is not None:
            row = connection.execute(f"SELECT id FROM p{number} WHERE off = ?", (offset,)).get  # noqa: S608
        if row != id:
            where = f"{part.partition}@{offset}" if part is not None else f"record {offset} of no partition"
            yield f"the index has id {id.hex()} for {where}, which has another"
