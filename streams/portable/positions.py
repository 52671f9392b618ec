"""The positions in the log named by events (`streams.log.log_place`), rewritten when an experiment moves to another
log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any, Final, Protocol

from rftd.ops.errors import ArchiveError, ConflictError
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.registry import Event
from rftd.streams.log.chain import Heads
from rftd.streams.log.marked import LogPlace, PlaceKind, changed
from rftd.streams.log.role import as_refs
from rftd.streams.log.topics import Partition


class Places:
    """The new offset of each old one, per partition; both only grow. Memory: 16 bytes a record."""

    def __init__(self) -> None:
        # Arrays of 64-bit integers: as Python's own, the millions of a long experiment would take ten times as much.
        self._of: dict[Partition, tuple[array[int], array[int]]] = {}

    def add(self, partition: Partition, old: int, new: int) -> None:
        """Adds the next record of a partition. Raises ConflictError if the log put it below the previous one."""
        olds, news = self._of.setdefault(partition, (array("q"), array("q")))
        assert not olds or olds[-1] < old, (partition, old)
        if news and news[-1] >= new:
            raise ConflictError(
                f"an event of the export is already in the destination, at {partition}@{new}, out of order",
                fix="the destination holds this experiment with another history",
            )
        olds.append(old)
        news.append(new)

    def exact(self, partition: Partition, old: int) -> int | None:
        """Returns the new offset of a record; None for an unknown record."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, old)
        return news[index] if index < len(olds) and olds[index] == old else None

    def bound(self, partition: Partition, next_offset: int) -> int | None:
        """Returns the new end of the records formerly below `next_offset`; None without any."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, next_offset)
        return news[index - 1] + 1 if index else None

    def count(self, partition: Partition) -> int:
        """Returns the number of a partition's records with a new position."""
        return len(self._of[partition][0]) if partition in self._of else 0


NOWHERE: Final = -1
"""The offset of a dead letter whose record was not the experiment's."""


class Mapper(Protocol):
    """A replacement for each kind of position held by events."""

    def record(self, partition: Partition, offset: int) -> int:
        """Returns the replacement for the offset of a required record."""
        ...

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Returns the replacement for the end of the part read."""
        ...

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the replacement for remembered heads."""
        ...

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the replacement for the heads with no record of the experiment below them."""
        ...

    def pointer(self, partition: Partition, offset: int) -> int:
        """Returns the replacement for the offset of a possibly missing record."""
        ...


def rewrite(event: Event, mapper: Mapper) -> Event:
    """Returns the event with each of its positions replaced by the mapper; the same object if it has none."""
    return changed(event, LogPlace, lambda mark, value, holder: _mapped(mark, value, holder, mapper))


def _mapped(mark: LogPlace, value: Any, holder: Any, mapper: Mapper) -> Any:
    match mark.kind:
        case PlaceKind.RECORD:
            return mapper.record(Partition(mark.stream, holder.partition), value)
        case PlaceKind.POINTER:
            return mapper.pointer(Partition(holder.stream, holder.partition), value)
        case PlaceKind.READ:
            return mapper.bound(Partition(holder.stream, holder.partition), value)
        case PlaceKind.HEADS:
            return mapper.heads(value)
        case PlaceKind.START:
            return mapper.start(value)
        case PlaceKind.DIGEST:
            return None  # over records with other bytes now: nothing can be compared with it
        case PlaceKind.HISTORY:
            return value


class Blank:
    """The mapper that blanks every position: the remaining event must be equal in every log."""

    def record(self, partition: Partition, offset: int) -> int:
        return 0

    def bound(self, partition: Partition, next_offset: int) -> int:
        return 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return ()

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return ()

    def pointer(self, partition: Partition, offset: int) -> int:
        return 0


class NeededRecords:
    """The mapper that changes nothing and collects the end of each partition required before an event's append."""

    def __init__(self) -> None:
        self.wanted: dict[Partition, int] = {}

    def record(self, partition: Partition, offset: int) -> int:
        self._want(partition, offset + 1)
        return offset

    def bound(self, partition: Partition, next_offset: int) -> int:
        self._want(partition, next_offset)
        return next_offset

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        for ref in refs:
            self._want(Partition(ref.stream, ref.partition), ref.next_offset)
        return refs

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return refs

    def pointer(self, partition: Partition, offset: int) -> int:
        return self.record(partition, offset)

    def _want(self, partition: Partition, next_offset: int) -> None:
        self.wanted[partition] = max(next_offset, self.wanted.get(partition, 0))


class Moved:
    """The mapper from old positions to new ones.

    `before` are the destination's heads with no record of the experiment below them. The end of the part read becomes
    the end of the experiment's own records there: records of other experiments in between do not matter. A remembered
    head stays if the destination can vouch for it, by its own chain, found in `chains` at the offset after the head's
    record.
    """

    def __init__(self, places: Places, before: Heads, chains: dict[tuple[Partition, int], bytes]) -> None:
        self._places = places
        self._before = before
        self._chains = chains

    def record(self, partition: Partition, offset: int) -> int:
        new_offset = self._places.exact(partition, offset)
        if new_offset is None:
            raise ArchiveError(f"it names a record missing in the export: {partition}@{offset}")
        return new_offset

    def bound(self, partition: Partition, next_offset: int) -> int:
        new_end = self._places.bound(partition, next_offset)
        if new_end is not None:
            return new_end
        return self._before[partition].next_offset if partition in self._before else 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        vouched = []
        for ref in refs:
            partition = Partition(ref.stream, ref.partition)
            end = self._places.bound(partition, ref.next_offset)
            chain = self._chains.get((partition, end)) if end is not None else None
            if end is not None and chain is not None:
                vouched.append(HeadRef(ref.stream, ref.partition, end, chain))
        return tuple(vouched)

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return as_refs(self._before)

    def pointer(self, partition: Partition, offset: int) -> int:
        new_offset = self._places.exact(partition, offset)
        return NOWHERE if new_offset is None else new_offset
