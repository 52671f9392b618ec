"""The index of ids, by which a repeated append is recognised: the newest ids in memory, the others in a table.

Ids are random: each one written by itself would change a page of a large table, and be most of what a commit writes.
By the thousand, neighbours share their pages. The rows of the newest records hold their ids too, so memory is filled
from them after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as flatten
from typing import Any

import apsw

from rftd.streams.sqlite import schema
from rftd.streams.sqlite.schema import Statements


class IdIndex:
    """The index of one writing connection; made anew after a failed write, when nobody knows what it should hold."""

    def __init__(self, connection: apsw.Connection, part_ids: Iterable[int]) -> None:
        self._connection = connection
        self._recent: dict[bytes, int] = {}
        ends = schema.indexed_ends(connection)
        for part_id in part_ids:
            rows: Any = connection.execute(Statements(part_id).ids_from, (ends.get(part_id, 0),))
            self._recent.update((id, place_of(part_id, offset)) for id, offset in rows)

    def places(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """The places of those ids that are in the log."""
        recent = self._recent
        found = {id: recent[id] for id in ids if id in recent}
        wanted = sorted(set(ids).difference(found))  # neighbours share a page
        for start in range(0, len(wanted), schema.ROWS_AT_ONCE):
            some = wanted[start : start + schema.ROWS_AT_ONCE]
            rows: list[Any] = self._connection.execute(schema.FIND_IDS[len(some)], some).fetchall()
            found.update(rows)
        return found

    def add(self, places: Iterable[tuple[bytes, int]]) -> None:
        """Takes in the ids of a transaction that is committed."""
        self._recent.update(places)

    def forget(self, ids: Iterable[bytes]) -> None:
        """Drops the ids of records that were truncated."""
        for id in ids:
            self._recent.pop(id, None)

    def settle(self, ends: Mapping[int, int]) -> None:
        """Moves the ids to the table if they are many; `ends` are the next offsets of all partitions by their id."""
        if len(self._recent) < schema.INDEXED_AT_ONCE:
            return
        connection = self._connection
        rows = sorted(self._recent.items())  # by id: neighbours go to the same page
        # One transaction for ids and ends: an end that ran ahead of its ids would make records unknown, for ever. After
        # a crash before it, the rows above the old ends fill the memory again.
        with connection:
            whole = len(rows) - len(rows) % schema.ROWS_AT_ONCE
            for start in range(0, whole, schema.ROWS_AT_ONCE):
                some = rows[start : start + schema.ROWS_AT_ONCE]
                connection.execute(schema.ADD_IDS, tuple(flatten.from_iterable(some)))
            connection.executemany(schema.ADD_ID, rows[whole:])
            connection.executemany(schema.MOVE_INDEXED, ends.items())
        self._recent.clear()


def place_of(part_id: int, offset: int) -> int:
    """A record's place as one number."""
    return part_id << schema.PLACE_BITS | offset


def split_place(place: int) -> tuple[int, int]:
    """The partition's id and the offset."""
    return place >> schema.PLACE_BITS, place & (1 << schema.PLACE_BITS) - 1
