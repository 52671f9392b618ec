"""The newest entries of what only grows: ids that were read, records that were acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """A mapping that holds its newest keys, up to a bound. A key that is put again keeps its age and gets the value."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        # The keys by age. `next(iter(values))` names the oldest too, but a dict passes over every slot that was emptied
        # since it last grew: of 100,000 keys that takes 60 us with each new one.
        self._keys: deque[K] = deque()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value of a key; None if it is not among the newest."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Takes in an entry; the oldest goes where there are too many."""
        if key not in self._values:
            self._keys.append(key)
        self._values[key] = value
        if len(self._keys) > self._most:
            del self._values[self._keys.popleft()]
