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
    """New offsets of moved records by old offset, per partition, both ascending; 16 bytes of memory per record."""

    def __init__(self) -> None:
        # Arrays of 64-bit integers: as Python's own, the millions of a long experiment would take ten times as much.
        self._of: dict[Partition, tuple[array[int], array[int]]] = {}

    def add(self, partition: Partition, old: int, new: int) -> None:
        """Records the new offset of the next record. Raises ConflictError if it is not above the previous one."""
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
        """Returns the new offset of a record; None if the record was not moved."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, old)
        return news[index] if index < len(olds) and olds[index] == old else None

    def bound(self, partition: Partition, next_offset: int) -> int | None:
        """Returns the offset after the last moved record with an old offset below `next_offset`; None without one."""
        olds, news = self._of.get(partition, ((), ()))
        index = bisect_left(olds, next_offset)
        return news[index - 1] + 1 if index else None

    def count(self, partition: Partition) -> int:
        """Returns the number of moved records of a partition."""
        return len(self._of[partition][0]) if partition in self._of else 0


NOWHERE: Final = -1
"""Offset written for a dead letter about a record outside the experiment."""


class Mapper(Protocol):
    """Replacements for the positions in an event, one method per `PlaceKind`."""

    def record(self, partition: Partition, offset: int) -> int:
        """Returns the new offset of an earlier record of the experiment."""
        ...

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Returns the new offset up to which a partition was read."""
        ...

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns remembered heads as valid in the new log."""
        ...

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the heads of the new log below which the experiment has no record."""
        ...

    def pointer(self, partition: Partition, offset: int) -> int:
        """Returns the new offset of a record that may be missing."""
        ...


def rewrite(event: Event, mapper: Mapper) -> Event:
    """Returns the event with each position replaced by the mapper; the same object if it has no positions."""
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
    """A mapper replacing every position by a constant, so that equal events of different logs become equal."""

    def record(self, partition: Partition, offset: int) -> int:
        """Returns the constant offset."""
        return 0

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Returns the constant offset."""
        return 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns no heads."""
        return ()

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns no heads."""
        return ()

    def pointer(self, partition: Partition, offset: int) -> int:
        """Returns the constant offset."""
        return 0


class NeededRecords:
    """A mapper that changes nothing, and collects up to where each partition has to be moved before the event."""

    def __init__(self) -> None:
        self.wanted: dict[Partition, int] = {}

    def record(self, partition: Partition, offset: int) -> int:
        """Requires the record, and returns its offset."""
        self._want(partition, offset + 1)
        return offset

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Requires the records below the offset, and returns it."""
        self._want(partition, next_offset)
        return next_offset

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Requires the records below the heads, and returns them."""
        for ref in refs:
            self._want(Partition(ref.stream, ref.partition), ref.next_offset)
        return refs

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the heads, requiring nothing."""
        return refs

    def pointer(self, partition: Partition, offset: int) -> int:
        """Requires the record if the experiment has it, and returns its offset."""
        return self.record(partition, offset)

    def _want(self, partition: Partition, next_offset: int) -> None:
        self.wanted[partition] = max(next_offset, self.wanted.get(partition, 0))


class Moved:
    """A mapper to the positions in the new log, after the named records were moved.

    `before` are the new log's heads with no record of the experiment below them. The end of a part read becomes the end
    of the experiment's own records there: records of other experiments in between do not matter. A remembered head is
    replaced only if the new log can vouch for it, by its own chain, found in `chains` at the offset after the head's
    record.
    """

    def __init__(self, places: Places, before: Heads, chains: dict[tuple[Partition, int], bytes]) -> None:
        self._places = places
        self._before = before
        self._chains = chains

    def record(self, partition: Partition, offset: int) -> int:
        """Returns the record's new offset."""
        new_offset = self._places.exact(partition, offset)
        if new_offset is None:
            raise ArchiveError(f"it names a record missing in the export: {partition}@{offset}")
        return new_offset

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Returns the end of the experiment's records read, in the new log."""
        new_end = self._places.bound(partition, next_offset)
        if new_end is not None:
            return new_end
        return self._before[partition].next_offset if partition in self._before else 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the heads for which the new log has chains."""
        vouched = []
        for ref in refs:
            partition = Partition(ref.stream, ref.partition)
            end = self._places.bound(partition, ref.next_offset)
            chain = self._chains.get((partition, end)) if end is not None else None
            if end is not None and chain is not None:
                vouched.append(HeadRef(ref.stream, ref.partition, end, chain))
        return tuple(vouched)

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Returns the heads `before`."""
        return as_refs(self._before)

    def pointer(self, partition: Partition, offset: int) -> int:
        """Returns the record's new offset, or `NOWHERE`."""
        new_offset = self._places.exact(partition, offset)
        return NOWHERE if new_offset is None else new_offset
