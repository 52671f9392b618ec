"""Compact state that grows with the history: sets of integers as intervals, closed groups, versions, packed lists."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events import batch
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.group_id import place_of_group

_NUMBER_SIZE_BYTES: Final = 8
"""Bytes of one number in the encoded ranges."""


class Ranges(msgspec.Struct):
    """A set of integers stored as intervals [start, end), small for sets with few gaps."""

    starts: list[int] = []
    """First number of each interval, ascending."""
    ends: list[int] = []
    """Number after each interval."""

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.starts, number) - 1
        return index >= 0 and number < self.ends[index]

    @property
    def last(self) -> int | None:
        """Highest number of the set; None for an empty set."""
        return self.ends[-1] - 1 if self.ends else None

    def below(self, number: int) -> int | None:
        """Returns the highest number in the set below `number`; None without one."""
        # From `number - 1`: an interval beginning at `number` holds nothing below it.
        index = bisect_right(self.starts, number - 1) - 1
        return min(number, self.ends[index]) - 1 if index >= 0 else None

    def add(self, number: int) -> None:
        """Adds a number to the set, merging adjacent intervals; a known number changes nothing."""
        self.cover(number, number + 1)

    def cover(self, start: int, end: int) -> None:
        """Adds all numbers of [start, end), merging overlapping and adjacent intervals."""
        # Touching intervals are merged, or a set growing by one number at a time would be a list of numbers.
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
        """Removes a number from the set, if present."""
        if number not in self:
            return
        index = bisect_right(self.starts, number) - 1
        intervals = [(self.starts[index], number), (number + 1, self.ends[index])]
        remaining = [interval for interval in intervals if interval[0] < interval[1]]
        self.starts[index : index + 1] = [start for start, _ in remaining]
        self.ends[index : index + 1] = [end for _, end in remaining]


class Ascending(msgspec.Struct):
    """A list of ascending integers, at eight bytes each in this machine's byte order."""

    octets: bytearray = msgspec.field(default_factory=bytearray)
    """The numbers as bytes."""

    def __len__(self) -> int:
        return len(self.octets) // _NUMBER_SIZE_BYTES

    def __getitem__(self, index: int) -> int:
        return memoryview(self.octets).cast("Q")[index]

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.octets).cast("Q").tolist())

    def append(self, number: int) -> None:
        """Appends a number, not lower than any earlier one."""
        self.octets += number.to_bytes(_NUMBER_SIZE_BYTES, sys.byteorder)

    def at_least(self, number: int) -> int:
        """Returns the index of the first entry not lower than `number`; the length if there is none."""
        return bisect_left(memoryview(self.octets).cast("Q"), number)

    def at_most(self, number: int) -> int:
        """Returns the index of the last entry not higher than `number`; -1 if there is none."""
        return bisect_right(memoryview(self.octets).cast("Q"), number) - 1


class ClosedGroups(msgspec.Struct):
    """Ids of closed groups: by stage and sequence if the id encodes them, otherwise as ids."""

    by_stage: dict[int, Ranges] = {}
    """Sequences of closed groups, by stage."""
    others: set[UUID] = set()
    """Ids that encode no sequence."""

    def holds(self, experiment: UUID | None, id: UUID) -> bool:
        """True if the group is closed."""
        if id in self.others:
            return True
        group_place = place_of_group(experiment, id)
        return (
            group_place is not None
            and group_place.stage in self.by_stage
            and group_place.sequence in self.by_stage[group_place.stage]
        )

    def first(self, experiment: UUID | None, id: UUID) -> bool:
        """Adds a closed group; False if it was closed already."""
        group_place = place_of_group(experiment, id)
        if group_place is None:
            already_closed = id in self.others
            self.others.add(id)
            return not already_closed
        sequences = self.by_stage.get(group_place.stage)
        if sequences is None:
            sequences = self.by_stage[group_place.stage] = Ranges()
        if group_place.sequence in sequences:
            return False
        sequences.add(group_place.sequence)
        return True


class Versions(msgspec.Struct):
    """A set of (version, generation), stored as intervals of versions for each generation."""

    by_generation: dict[int, Ranges] = {}
    """Versions of each generation."""

    def __contains__(self, key: tuple[int, int]) -> bool:
        versions = self.by_generation.get(key[1])
        return versions is not None and key[0] in versions

    def of(self, generation: int) -> Ranges:
        """Returns the versions of one generation, to be added to."""
        versions = self.by_generation.get(generation)
        if versions is None:
            versions = self.by_generation[generation] = Ranges()
        return versions

    def add(self, key: tuple[int, int]) -> None:
        """Adds a (version, generation) to the set."""
        self.of(key[1]).add(key[0])


REMEMBERED: Final = 4096
"""Minimum number of newest ids, and of newest steps, remembered; up to twice as many are."""


class Recent(msgspec.Struct):
    """The newest ids of one partition's events."""

    newer: set[UUID] = set()
    """Ids added since the last rotation."""
    older: set[UUID] = set()
    """Ids added before the last rotation, to be dropped at the next rotation."""

    def __contains__(self, id: UUID) -> bool:
        return id in self.newer or id in self.older

    def first(self, id: UUID) -> bool:
        """Adds an id; False if it is among the remembered ones."""
        if id in self:
            return False
        self.newer.add(id)
        # Two halves: dropping one is free, while an order of single ids would cost time with each id.
        if len(self.newer) >= REMEMBERED:
            self.older = self.newer
            self.newer = set()
        return True


class PlannedBatches(msgspec.Struct):
    """Steps with a plan that was not abandoned, known from the spine alone and thus alike in every process."""

    steps: Ranges = msgspec.field(default_factory=Ranges)
    """Steps with a plan that was not abandoned, trained ones included."""
    newest: dict[int, UUID] = {}
    """Batch ids of the newest steps, by step."""
    abandoned: set[UUID] = set()
    """Ids of abandoned batches."""
    furthest: int = 0
    """Last trained step."""
    before: int = 0
    """Step before the first one to plan: the last of a fork's shared history, or of earlier stages."""

    @property
    def last(self) -> int:
        """Last step with a plan, or `before` without plans: the next plan is for the step after it."""
        return max(self.before, self.steps.last or 0)

    def begin(self, version: int) -> None:
        """Sets `before`, the weight version after which batches are planned next."""
        self.before = max(self.before, version)

    def plan(self, event: batch.BatchPlanned) -> bool:
        """Adds a plan; False if it is known, or not for the next step."""
        if event.batch in self.abandoned or event.step != self.last + 1:
            return False
        self.steps.add(event.step)
        self.newest[event.step] = event.batch
        trim(self.newest)
        return True

    def abandon(self, event: batch.BatchAbandoned) -> bool:
        """Removes an abandoned plan; False if the batch is not the plan of its step, or was trained."""
        # Of a step and its abandonment the first on the spine counts: an executed plan made weights, and stands.
        if event.step <= self.furthest:
            return False
        # For a step no longer among the newest, the batch is unknown, and believed.
        planned_batch = self.newest.get(event.step, event.batch)
        if event.batch in self.abandoned or event.step not in self.steps or planned_batch != event.batch:
            return False
        self.steps.discard(event.step)
        self.newest.pop(event.step, None)
        self.abandoned.add(event.batch)
        return True

    def complete(self, event: StepCompleted) -> None:
        """Records a trained step; a step of an abandoned batch is ignored."""
        if event.batch not in self.abandoned:
            self.furthest = max(self.furthest, event.step)


def trim(newest: dict[object, object] | dict[int, UUID] | dict[int, int] | dict[tuple[int, int], str]) -> None:
    """Drops the oldest half of a mapping's keys once it has grown beyond its limit."""
    if len(newest) >= 2 * REMEMBERED:
        for key in list(newest)[:REMEMBERED]:
            del newest[key]  # type: ignore[arg-type]
