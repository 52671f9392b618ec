"""`KeyedRows`: values of many keys in packed rows of equal length, found by bisection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.folds.ranges import Ascending

_KEY_SIZE_BYTES: Final = 16
"""Bytes of a key."""


class KeyedRows(msgspec.Struct, frozen=True):
    """Packed rows, each a key and a value, sorted by the last 64 bits of the key."""

    lows: Ascending
    """The last 64 bits of each key, as a number."""
    rows: bytes
    """Rows as bytes, one after another, each a key of 16 bytes and a value."""

    @classmethod
    def of(cls, contents: Sequence[tuple[UUID, bytes]]) -> KeyedRows:
        """Packs values with their keys; all values must have equal length."""
        lows = Ascending()
        rows = bytearray()
        for key, content in sorted(contents, key=lambda keyed: _low_bits(keyed[0])):
            lows.append(_low_bits(key))
            rows += key.bytes + content
        return cls(lows=lows, rows=bytes(rows))

    def find(self, key: UUID) -> Iterator[bytes]:
        """Yields every value packed under a key."""
        low = _low_bits(key)
        size_bytes = len(self.rows) // max(1, len(self.lows))
        number = self.lows.at_least(low)
        while number < len(self.lows) and self.lows[number] == low:
            row = self.rows[number * size_bytes : (number + 1) * size_bytes]
            if row[:_KEY_SIZE_BYTES] == key.bytes:
                yield row[_KEY_SIZE_BYTES:]
            number += 1


def _low_bits(key: UUID) -> int:
    """Returns the last 64 bits of a key."""
    return key.int & ((1 << 64) - 1)
