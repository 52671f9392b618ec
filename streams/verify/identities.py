"""`Identities`: the event ids of the log, and those that are in it twice.

The newest ids are compared exactly; the others lie in sorted runs on disk.
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
"""The newest ids of a partition that are known exactly, at least; twice as many at most."""
_RUN_IDS: Final = 1 << 18
"""The ids that are sorted in memory and become one run on disk, of 4 MiB."""
_ROW: Final = np.dtype([("low", "<u8"), ("place", "<u8")])
_PLACE_BITS: Final = 48
_NUMBERS: Final = {partition: number for number, partition in enumerate(EVERY_PARTITION)}
_LOW: Final = (1 << 64) - 1


def low(id: UUID) -> int:
    """The part of an id that is compared: its last 64 bits, 62 of them drawn by chance or made by a hash."""
    return id.int & _LOW


def mixed(id: UUID) -> int:
    """A group's id as a number of 64 bits: each half tells of its place, so both count."""
    number = id.int
    return (number ^ number >> 64) & _LOW


class Twice(NamedTuple):
    """Two records whose ids may be equal."""

    first: tuple[Partition, int]
    again: tuple[Partition, int]


class Identities:
    """The ids of every record of ours, taken in partition by partition."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._partition: Partition | None = None
        self._new: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._lows: list[bytes] = []
        self._places: list[int] = []
        self._runs: list[tuple[int, int]] = []
        """The start in the scratch file and the number of rows of each run."""

    def first(self, id: bytes, partition: Partition, offset: int) -> int | None:
        """The offset of an earlier record of this partition with this id, if it is among the newest; else takes it."""
        # Partitions are read one after the other, and only Kafka repeats, within one: a single window is enough.
        if partition is not self._partition:
            self._partition = partition
            self._new = {}
            self._old = {}
        known = self._new.get(id)
        if known is None:
            known = self._old.get(id)
        if known is not None:
            return known
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
        """Pairs of records whose ids end alike, once everything was read; the caller compares the rest."""
        self._settle()
        for rows in self._ranges():
            order = np.lexsort((rows["place"], rows["low"]))
            rows = rows[order]
            for index in np.flatnonzero(rows["low"][1:] == rows["low"][:-1]):
                yield Twice(_where(int(rows["place"][index])), _where(int(rows["place"][index + 1])))

    def places(self, id: UUID) -> list[tuple[Partition, int]]:
        """The places of records whose id may be this one, once everything was read."""
        self._settle()
        wanted = int.from_bytes(id.bytes[8:], "big")
        found: list[tuple[Partition, int]] = []
        for start, count in self._runs:
            rows = self._rows(start, 0, count)
            first = int(np.searchsorted(rows["low"], np.uint64(wanted), side="left"))
            last = int(np.searchsorted(rows["low"], np.uint64(wanted), side="right"))
            found += [_where(int(place)) for place in rows["place"][first:last]]
        return found

    def _ranges(self) -> Iterator[NDArray[Any]]:
        """All rows in ranges of their ids, each small enough for memory."""
        # Ids are spread evenly, so as many equal ranges as there are runs hold about one run's rows each.
        parts = max(1, len(self._runs))
        bounds = [round(index * (1 << 64) / parts) for index in range(1, parts)]
        cuts = []
        for start, count in self._runs:
            lows = self._rows(start, 0, count)["low"]
            inner = np.searchsorted(lows, np.array(bounds, dtype=np.uint64))
            cuts.append([0, *(int(cut) for cut in inner), count])
        for part in range(parts):
            pieces = [
                self._rows(start, cut[part], cut[part + 1])
                for (start, _), cut in zip(self._runs, cuts, strict=True)
                if cut[part + 1] > cut[part]
            ]
            if pieces:
                yield np.concatenate(pieces)

    def _rows(self, start: int, first: int, last: int) -> NDArray[Any]:
        size = _ROW.itemsize
        return np.frombuffer(self._scratch.read(start + first * size, (last - first) * size), dtype=_ROW)

    def _settle(self) -> None:
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


def _where(place: int) -> tuple[Partition, int]:
    return EVERY_PARTITION[place >> _PLACE_BITS], place & (1 << _PLACE_BITS) - 1
