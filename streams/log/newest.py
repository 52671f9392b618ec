"""A mapping bounded to its newest keys: ids already read, records already acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """A mapping limited to its newest keys; setting a key again keeps the key's age."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        # The keys by age. `next(iter(values))` names the oldest too, but a dict passes over every slot emptied since it
        # last grew: with 100,000 keys, 60 us for each new one.
        self._keys: deque[K] = deque()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """Returns the value of a key; None for a key not among the newest."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key; above the bound, the oldest key is removed."""
        if key not in self._values:
            self._keys.append(key)
        self._values[key] = value
        if len(self._keys) > self._most:
            del self._values[self._keys.popleft()]
