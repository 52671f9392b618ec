"""What grows with the history in few bytes: intervals of whole numbers, of closed groups and of versions; lists."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.log.group_id import place_of_group

_NUMBER_SIZE_BYTES: Final = 8


class Ranges(msgspec.Struct):
    """A set of whole numbers as intervals [start, end): those that are used have few gaps."""

    starts: list[int] = []
    ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.starts, number) - 1
        return at >= 0 and number < self.ends[at]

    @property
    def last(self) -> int | None:
        """The highest; None if there is none."""
        return self.ends[-1] - 1 if self.ends else None

    def below(self, number: int) -> int | None:
        """The highest that is lower; None if there is none."""
        # From `number - 1`: an interval that begins at `number` holds nothing below it.
        at = bisect_right(self.starts, number - 1) - 1
        return min(number, self.ends[at]) - 1 if at >= 0 else None

    def add(self, number: int) -> None:
        """Takes it in."""
        self.cover(number, number + 1)

    def cover(self, start: int, end: int) -> None:
        """Takes in all of [start, end)."""
        # Intervals that only touch become one, or a set that grows by one number at a time would be a list of them.
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.ends[first] < start:
            first += 1
        last = bisect_right(self.starts, end) - 1
        if first <= last:
            start = min(start, self.starts[first])
            end = max(end, self.ends[last])
        self.starts[first : last + 1] = [start]
        self.ends[first : last + 1] = [end]

    def discard(self, number: int) -> None:
        """Takes it out."""
        if number not in self:
            return
        at = bisect_right(self.starts, number) - 1
        parts = [(self.starts[at], number), (number + 1, self.ends[at])]
        left = [part for part in parts if part[0] < part[1]]
        self.starts[at : at + 1] = [start for start, _ in left]
        self.ends[at : at + 1] = [end for _, end in left]


class Ascending(msgspec.Struct):
    """A list of whole numbers that never fall, at eight bytes each in this machine's order of bytes."""

    octets: bytearray = msgspec.field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.octets) // _NUMBER_SIZE_BYTES

    def __getitem__(self, index: int) -> int:
        return memoryview(self.octets).cast("Q")[index]

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.octets).cast("Q").tolist())

    def append(self, number: int) -> None:
        """Takes in the next number, which no earlier one exceeds."""
        self.octets += number.to_bytes(_NUMBER_SIZE_BYTES, sys.byteorder)

    def at_least(self, number: int) -> int:
        """The index of the first entry that is not lower; the length if there is none."""
        return bisect_left(memoryview(self.octets).cast("Q"), number)

    def at_most(self, number: int) -> int:
        """The index of the last entry that is not higher; -1 if there is none."""
        return bisect_right(memoryview(self.octets).cast("Q"), number) - 1


class ClosedGroups(msgspec.Struct):
    """Groups that closed: by their places, and by id those whose id says none."""

    by_stage: dict[int, Ranges] = {}
    others: set[UUID] = set()

    def holds(self, experiment: UUID | None, id: UUID) -> bool:
        """True if the group closed."""
        if id in self.others:
            return True
        place = place_of_group(experiment, id)
        return place is not None and place.stage in self.by_stage and place.sequence in self.by_stage[place.stage]

    def first(self, experiment: UUID | None, id: UUID) -> bool:
        """Takes it in; False if it was there."""
        place = place_of_group(experiment, id)
        if place is None:
            known = id in self.others
            self.others.add(id)
            return not known
        sequences = self.by_stage.get(place.stage)
        if sequences is None:
            sequences = self.by_stage[place.stage] = Ranges()
        if place.sequence in sequences:
            return False
        sequences.add(place.sequence)
        return True


class Versions(msgspec.Struct):
    """A set of (version, generation)."""

    by_generation: dict[int, Ranges] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        found = self.by_generation.get(key[1])
        return found is not None and key[0] in found

    def of(self, generation: int) -> Ranges:
        """Those of one generation, to be added to."""
        found = self.by_generation.get(generation)
        if found is None:
            found = self.by_generation[generation] = Ranges()
        return found

    def add(self, key: tuple[int, int]) -> None:
        """Takes it in."""
        self.of(key[1]).add(key[0])
