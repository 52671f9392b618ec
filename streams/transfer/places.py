"""`Places`: where each record of an experiment lay, and where it lies now."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from rftd.ops.errors import ConflictError
from rftd.streams.topics import Partition


class Places:
    """Old offsets to new ones, per partition; both only grow. 16 bytes a record."""

    def __init__(self) -> None:
        self._of: dict[Partition, tuple[array[int], array[int]]] = {}

    def add(self, partition: Partition, old: int, new: int) -> None:
        """The next record of a partition. Raises ConflictError if the log put it below the one before."""
        olds, news = self._of.setdefault(partition, (array("q"), array("q")))
        assert not olds or olds[-1] < old, (partition, old)
        if news and news[-1] >= new:
            raise ConflictError(
                f"an event of the export lies in the destination already, at {partition}@{new}, out of order",
                fix="the destination holds this experiment with another history",
            )
        olds.append(old)
        news.append(new)

    def exact(self, partition: Partition, old: int) -> int | None:
        """The new offset of a record; None if there is no such record."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, old)
        return news[index] if index < len(olds) and olds[index] == old else None

    def bound(self, partition: Partition, next_offset: int) -> int | None:
        """The end of the records that lay below `next_offset`; None if there is none."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, next_offset)
        return news[index - 1] + 1 if index else None

    def count(self, partition: Partition) -> int:
        """How many records of a partition have a new place."""
        return len(self._of[partition][0]) if partition in self._of else 0
