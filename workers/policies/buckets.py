"""`Buckets`: things under a number of theirs, the smallest number first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

T = TypeVar("T")


class Buckets(Generic[T]):
    """Many things share a number, and few numbers are in use: what is ordered are these."""

    def __init__(self) -> None:
        self._buckets: SortedDict = SortedDict()

    @property
    def first(self) -> int | None:
        """The smallest number; None if there is nothing."""
        return int(self._buckets.keys()[0]) if self._buckets else None

    def move(self, thing: T, old: int | None, new: int | None) -> None:
        """From one number to another; None: it is under none."""
        if old == new:
            return
        if old is not None:
            bucket = self._buckets[old]
            del bucket[thing]
            if not bucket:
                del self._buckets[old]
        if new is not None:
            self._buckets.setdefault(new, {})[thing] = None

    def below(self, number: int) -> Iterator[T]:
        """All under smaller numbers, the smallest first. Nothing may be moved meanwhile."""
        for each, bucket in self._buckets.items():
            if each >= number:
                return
            yield from bucket
