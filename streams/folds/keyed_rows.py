"""`KeyedRows`: values of many keys in rows of equal length, sorted, so that a key is found by halving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.folds.ranges import Ascending

_KEY_SIZE_BYTES: Final = 16


class KeyedRows(msgspec.Struct, frozen=True):
    """Rows that were packed at once, each its key and its value. They are sorted by the last 64 bits of the keys."""

    lows: Ascending
    """The last 64 bits of each key, as a number."""
    rows: bytes

    @classmethod
    def of(cls, values: Sequence[tuple[UUID, bytes]]) -> KeyedRows:
        """The values by their keys; all of them are equally long."""
        lows = Ascending()
        rows = bytearray()
        for key, value in sorted(values, key=lambda keyed: _low(keyed[0])):
            lows.append(_low(key))
            rows += key.bytes + value
        return cls(lows=lows, rows=bytes(rows))

    def find(self, key: UUID) -> Iterator[bytes]:
        """The values of a key."""
        low = _low(key)
        size_bytes = len(self.rows) // max(1, len(self.lows))
        number = self.lows.at_least(low)
        while number < len(self.lows) and self.lows[number] == low:
            row = self.rows[number * size_bytes : (number + 1) * size_bytes]
            if row[:_KEY_SIZE_BYTES] == key.bytes:
                yield row[_KEY_SIZE_BYTES:]
            number += 1


def _low(key: UUID) -> int:
    return key.int & ((1 << 64) - 1)
