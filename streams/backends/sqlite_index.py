"""The embedded log's index of ids against its records, and SQLite's own structure: `rftd verify --index`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw

from rftd.streams.backends import sqlite_schema as schema
from rftd.streams.backends.sqlite_errors import translate
from rftd.streams.backends.sqlite_ids import place_of, split_place
from rftd.streams.backends.sqlite_schema import StoredPart

_AT_ONCE: Final = 8192
_ERRORS: Final = 20


def wrong_ids(folder: Path) -> Iterator[str]:
    """What is wrong with the index, and with the structure of the file, in words; one snapshot, beside a daemon too.

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
        if found > expected:
            yield from _foreign(connection, parts)
        for (line,) in connection.execute(f"PRAGMA integrity_check({_ERRORS})"):
            if line != "ok":
                yield f"the structure of {path} is damaged: {line}"
    except (apsw.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    finally:
        connection.close(True)


def _missing(connection: apsw.Connection, part: StoredPart, end: int) -> Iterator[str]:
    """Records below `end` whose id the index does not have, or has for another place; stretches of them in one line."""
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
    """Ids that the index has and no record."""
    for id, place in connection.execute("SELECT id, place FROM ids"):
        number, offset = split_place(place)
        part = parts.get(number)
        row: Any = None
        if part is not None:
            row = connection.execute(f"SELECT id FROM p{number} WHERE off = ?", (offset,)).get  # noqa: S608
        if row != id:
            where = f"{part.partition}@{offset}" if part is not None else f"record {offset} of no partition"
            yield f"the index has id {id.hex()} for {where}, which has another"
