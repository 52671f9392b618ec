"""Identities of recent records: by them a repeated record is recognised."""

from __future__ import annotations

from typing import Final

WINDOW_RECORDS: Final = 16_384
DUPLICATES_MAX: Final = 65_536


class Window:
    """The newest identities of one partition, each with the offset of its first record."""

    def __init__(self, records: int = WINDOW_RECORDS) -> None:
        self._limit = records
        self._offsets: dict[bytes, int] = {}

    def admit(self, key: bytes, offset: int) -> bool:
        """False if an earlier record has this identity."""
        if not key:
            return True
        first = self._offsets.get(key)
        if first is not None and first < offset:
            return False
        self._offsets[key] = offset
        if len(self._offsets) > self._limit:
            del self._offsets[next(iter(self._offsets))]
        return True

    def find(self, key: bytes) -> int | None:
        """The offset of the first record with this identity, if it is recent."""
        return self._offsets.get(key)
