"""`KeyedRows`: values of many keys in packed rows of equal length, found by bisection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.folds.ranges import Ascending

_KEY_SIZE_BYTES: Final = 16


class KeyedRows(msgspec.Struct, frozen=True):
    """Packed rows, each a key and a value, sorted by the last 64 bits of the key."""

    lows: Ascending
    """The last 64 bits of each key, as a number."""
    rows: bytes

    @classmethod
    def of(cls, contents: Sequence[tuple[UUID, bytes]]) -> KeyedRows:
        """Packs values with their keys; all values must have equal length."""
        lows = Ascending()
        rows = bytearray()
        for key, content in sorted(contents, key=lambda keyed: _low(keyed[0])):
            lows.append(_low(key))
            rows += key.bytes + content
        return cls(lows=lows, rows=bytes(rows))

    def find(self, key: UUID) -> Iterator[bytes]:
        """Yields every value packed under a key."""
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
