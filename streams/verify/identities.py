"""`Identities`: the event ids of the log, and the duplicates among them.

The newest ids are compared exactly; the older ones lie in sorted runs on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rftd.streams.log.topics import EVERY_PARTITION, Partition
from rftd.streams.verify.scratch import Scratch

_WINDOW_IDS: Final = 1 << 16
"""Minimum number of a partition's newest ids known exactly; the maximum is twice as high."""
_RUN_IDS: Final = 1 << 18
"""Number of ids sorted in memory for one run on disk, of 4 MiB."""
_ROW: Final = np.dtype([("low", "<u8"), ("place", "<u8")])
"""A row of a sorted run: the lower half of an id, and the record's packed position."""
_PLACE_BITS: Final = 48
"""Bits of the offset in a packed position; the partition's number is above."""
_NUMBERS: Final = {partition: number for number, partition in enumerate(EVERY_PARTITION)}
"""The number of each partition in packed positions."""
_LOW: Final = (1 << 64) - 1
"""Keeps the lower half of an id."""


def low(id: UUID) -> int:
    """Returns the compared part of an id: its last 64 bits, 62 of them random or from a hash."""
    return id.int & _LOW


def mixed(id: UUID) -> int:
    """Mixes a group's id into 64 bits: each half encodes a part of its place, so both count."""
    number = id.int
    return (number ^ number >> 64) & _LOW


class Twice(NamedTuple):
    """Positions of two records whose ids end alike."""

    first: tuple[Partition, int]
    """Position of the earlier record."""
    again: tuple[Partition, int]
    """Position of the later record."""


class Identities:
    """The ids of every record with a known type, added partition by partition."""

    def __init__(self, scratch: Scratch) -> None:
        """Begins without an id; sorted runs go to `scratch`."""
        self._scratch = scratch
        self._partition: Partition | None = None
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._lows: list[bytes] = []
        self._places: list[int] = []
        self._runs: list[tuple[int, int]] = []
        """The start in the scratch file and the number of rows of each run."""

    def first(self, id: bytes, partition: Partition, offset: int) -> int | None:
        """Returns the offset of an earlier record of this partition with the id, if recent; otherwise adds the id and
        returns None.
        """
        # Partitions are read one after the other, and only Kafka repeats, within one: a single window is enough.
        if partition is not self._partition:
            self._partition = partition
            self._new = {}
            self._old = {}
        earlier_offset = self._new.get(id)
        if earlier_offset is None:
            earlier_offset = self._old.get(id)
        if earlier_offset is not None:
            return earlier_offset
        if len(self._new) >= _WINDOW_IDS:
            self._old = self._new
            self._new = {}
        self._new[id] = offset
        self._lows.append(id)
        self._places.append(_NUMBERS[partition] << _PLACE_BITS | offset)
        if len(self._places) >= _RUN_IDS:
            self._settle()
        return None

    def twice(self) -> Iterator[Twice]:
        """Yields pairs of records whose ids end alike, after all were added; callers compare the complete ids."""
        self._settle()
        for rows in self._ranges():
            order = np.lexsort((rows["place"], rows["low"]))
            rows = rows[order]
            for index in np.flatnonzero(rows["low"][1:] == rows["low"][:-1]):
                yield Twice(_where(int(rows["place"][index])), _where(int(rows["place"][index + 1])))

    def places(self, id: UUID) -> list[tuple[Partition, int]]:
        """Returns the positions of records whose ids end like this one, after all were added."""
        self._settle()
        low_bits = int.from_bytes(id.bytes[8:], "big")
        positions: list[tuple[Partition, int]] = []
        for start, count in self._runs:
            rows = self._rows(start, 0, count)
            first = int(np.searchsorted(rows["low"], np.uint64(low_bits), side="left"))
            last = int(np.searchsorted(rows["low"], np.uint64(low_bits), side="right"))
            positions += [_where(int(packed_position)) for packed_position in rows["place"][first:last]]
        return positions

    def _ranges(self) -> Iterator[NDArray[Any]]:
        """Yields all rows in ranges of their ids, each small enough for memory."""
        # Ids are spread evenly: with as many equal ranges as runs, a range holds about one run's number of rows.
        range_count = max(1, len(self._runs))
        bounds = [round(index * (1 << 64) / range_count) for index in range(1, range_count)]
        cuts = []
        for start, count in self._runs:
            lows = self._rows(start, 0, count)["low"]
            inner = np.searchsorted(lows, np.array(bounds, dtype=np.uint64))
            cuts.append([0, *(int(cut) for cut in inner), count])
        for range_number in range(range_count):
            pieces = [
                self._rows(start, cut[range_number], cut[range_number + 1])
                for (start, _), cut in zip(self._runs, cuts, strict=True)
                if cut[range_number + 1] > cut[range_number]
            ]
            if pieces:
                yield np.concatenate(pieces)

    def _rows(self, start: int, first: int, last: int) -> NDArray[Any]:
        """Reads a range of rows of the sorted run at `start`."""
        size = _ROW.itemsize
        return np.frombuffer(self._scratch.read(start + first * size, (last - first) * size), dtype=_ROW)

    def _settle(self) -> None:
        """Sorts the newest ids, and writes them as a run."""
        if not self._places:
            return
        whole = np.frombuffer(b"".join(self._lows), dtype=">u8")
        rows = np.empty(len(self._places), dtype=_ROW)
        rows["low"] = whole[1::2]
        rows["place"] = self._places
        # Only the low halves go to disk: 16 bytes a record instead of 24; equal ones are compared in the log.
        rows.sort(order="low")
        self._runs.append((self._scratch.add(rows.tobytes()), len(rows)))
        self._lows = []
        self._places = []


def _where(packed_position: int) -> tuple[Partition, int]:
    """Unpacks a position."""
    return EVERY_PARTITION[packed_position >> _PLACE_BITS], packed_position & (1 << _PLACE_BITS) - 1
