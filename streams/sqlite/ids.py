"""The index of ids, for recognising repeated appends: the newest ids in memory, the older ids in a table.

Ids are random: written one by one, each id would change a page of a large table, and be most of a commit's bytes. By
the thousand, neighbours share pages. The rows of the newest records hold the ids too: after a restart, memory is filled
from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as flatten
from typing import Any

import apsw

from rftd.streams.sqlite import schema
from rftd.streams.sqlite.schema import Statements


class IdIndex:
    """The index from record ids to locations, for one writing connection; rebuilt after a failed write, when its
    content is uncertain.
    """

    def __init__(self, connection: apsw.Connection, part_ids: Iterable[int]) -> None:
        """Fills the memory with the ids of records not in the table yet."""
        self._connection = connection
        self._recent: dict[bytes, int] = {}
        ends = schema.indexed_ends(connection)
        for part_id in part_ids:
            rows: Any = connection.execute(Statements(part_id).ids_from, (ends.get(part_id, 0),))
            self._recent.update((id, place_of(part_id, offset)) for id, offset in rows)

    def places(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Returns the locations (see `place_of`) of the ids present in the log; absent ids have no key."""
        recent = self._recent
        locations = {id: recent[id] for id in ids if id in recent}
        unknown = sorted(set(ids).difference(locations))  # sorted: neighbours share a page
        for start in range(0, len(unknown), schema.ROWS_PER_STATEMENT):
            chunk = unknown[start : start + schema.ROWS_PER_STATEMENT]
            rows: list[Any] = self._connection.execute(schema.FIND_IDS[len(chunk)], chunk).fetchall()
            locations.update(rows)
        return locations

    def add(self, locations: Iterable[tuple[bytes, int]]) -> None:
        """Adds ids with their locations, after the transaction with their records was committed."""
        self._recent.update(locations)

    def forget(self, ids: Iterable[bytes]) -> None:
        """Removes the ids of truncated records from memory; unknown ids are ignored."""
        for id in ids:
            self._recent.pop(id, None)

    def settle(self, ends: Mapping[int, int]) -> None:
        """Moves the ids in memory to the table once they number `schema.IDS_PER_INDEXING`; otherwise does nothing.

        `ends` are the next offsets by partition id; the table then holds every id of records below its partition's end.
        """
        if len(self._recent) < schema.IDS_PER_INDEXING:
            return
        connection = self._connection
        rows = sorted(self._recent.items())  # by id: neighbours go to the same page
        # One transaction for ids and ends: an end ahead of its ids would make records unknown, for ever. After a crash
        # before it, the rows above the old ends fill the memory again.
        with connection:
            whole = len(rows) - len(rows) % schema.ROWS_PER_STATEMENT
            for start in range(0, whole, schema.ROWS_PER_STATEMENT):
                chunk = rows[start : start + schema.ROWS_PER_STATEMENT]
                connection.execute(schema.ADD_IDS, tuple(flatten.from_iterable(chunk)))
            connection.executemany(schema.ADD_ID, rows[whole:])
            connection.executemany(schema.MOVE_INDEXED, ends.items())
        self._recent.clear()


def place_of(part_id: int, offset: int) -> int:
    """Packs a partition's id and an offset into one integer, called the record's location."""
    return part_id << schema.PLACE_BITS | offset


def split_place(location: int) -> tuple[int, int]:
    """Unpacks a location into the partition's id and the offset."""
    return location >> schema.PLACE_BITS, location & (1 << schema.PLACE_BITS) - 1
