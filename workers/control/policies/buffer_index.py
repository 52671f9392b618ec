"""`BufferIndex` orders the experiences that may be trained as a policy asks, by ids, priorities and versions alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from sortedcontainers import SortedDict, SortedKeyList

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry, Changes

T = TypeVar("T")


class Buckets(Generic[T]):
    """Things ordered by a number: many share one and few numbers are in use, so that the numbers are sorted alone."""

    def __init__(self) -> None:
        self._buckets: SortedDict = SortedDict()

    @property
    def first(self) -> int | None:
        """The smallest number; None if there is nothing."""
        return int(self._buckets.keys()[0]) if self._buckets else None

    def move(self, thing: T, old: int | None, new: int | None) -> None:
        """Moves a thing from one number to another; None: it is under none."""
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
        """The things under smaller numbers, the smallest first. Nothing may be moved meanwhile."""
        for each, bucket in self._buckets.items():
            if each >= number:
                return
            yield from bucket


Order: TypeAlias = tuple[float, ...]


class Priority(Protocol):
    """The rank of an experience in training: the highest is first."""

    def __call__(self, entry: BufferEntry, /) -> float:
        """The priority."""
        ...


_index = attrgetter("index")
_entries = attrgetter("entries")
_oldest = attrgetter("member.oldest_version")


class ReadyGroup(msgspec.Struct, eq=False):
    """The experiences of one group that may be trained now. They stay together in every order."""

    group: UUID
    offset: int
    """The offset of its `group.closed`: groups that closed earlier have smaller ones."""
    sequence: int
    """The place of its task in the order of the dataset."""
    priority: float
    """The highest priority of its experiences."""
    oldest_version: int
    entries: list[BufferEntry]
    """Entries in the order of the group."""
    order: Order = ()


class _Group(msgspec.Struct, eq=False):
    """A group with all of its experiences, and its places in the buffer."""

    id: UUID
    entries: dict[int, BufferEntry] = {}
    """Entries by the number of the experience's id."""
    ready: ReadyGroup | None = None
    """The group as it is ordered; None if all of its experiences rest."""
    oldest_version: int | None = None
    rests_until_ns: int | None = None
    """The time at which the next of those that rest has rested."""


class BufferIndex:
    """Experiences of one stage that may be planned, or may be once they have rested.

    What is ordered are groups, and of those only the ones that a change concerns are looked at: 100,000 that wait cost
    a plan nothing. Changes come together, so that a group is put in its place once for all of its experiences.
    """

    def __init__(
        self, order: Callable[[ReadyGroup], Order], priority: Priority, entries: Iterable[BufferEntry] = ()
    ) -> None:
        self._order = order
        self._priority = priority
        # Numbers and not UUIDs as keys, here and below: Python hashes and compares an int ten times as fast as
        # a UUID.
        self._group_of: dict[int, _Group] = {}
        """Groups by the numbers of their experiences' ids."""
        self._groups: dict[int, _Group] = {}
        # A group that changes is taken out under its old order and put in under the new one: a key must not
        # change in the list.
        self._ordered: SortedKeyList = SortedKeyList(key=attrgetter("order"))
        self._by_version: Buckets[_Group] = Buckets()
        self._resting: Buckets[_Group] = Buckets()
        self._awake = 0
        self._now_ns = 0
        self.change({entry.member.experience: entry for entry in entries})

    def __len__(self) -> int:
        """Experiences that may be planned now."""
        return self._awake

    @property
    def size(self) -> int:
        """The number of all experiences, those that rest too."""
        return len(self._group_of)

    @property
    def next_eligible_ns(self) -> int | None:
        """The time at which the next one has rested; None if none rests."""
        return self._resting.first

    @property
    def oldest_version(self) -> int | None:
        """The oldest weight version that any of them began with; None if there are none."""
        return self._by_version.first

    def change(self, experiences: Changes) -> None:
        """Takes experiences in, or as they are now; forgets those that are None."""
        changed: dict[_Group, None] = {}
        arrives: _Group | None = None
        for id, entry in experiences.items():
            group = self._group_of.get(id.int)
            if entry is None:
                if group is None:
                    continue
                del self._group_of[id.int], group.entries[id.int]
            else:
                if group is None:
                    if arrives is None or arrives.id is not entry.group.group:  # most follow one of their group
                        arrives = self._group(entry.group.group)
                    group = self._group_of[id.int] = arrives
                group.entries[id.int] = entry
            changed[group] = None
        self._settle(changed)

    def take(self, entries: Iterable[BufferEntry]) -> None:
        """Forgets experiences."""
        changed: dict[_Group, None] = {}
        for entry in entries:
            number = entry.member.experience.int
            if (group := self._group_of.pop(number, None)) is not None:
                del group.entries[number]
                changed[group] = None
        self._settle(changed)

    def put(self, entry: BufferEntry) -> None:
        """Takes one experience in, or as it is now."""
        self.change({entry.member.experience: entry})

    def drop(self, experience: UUID) -> None:
        """Forgets one experience, if it is there."""
        self.change({experience: None})

    def awake(self, now_ns: int) -> None:
        """Lets those be planned that have rested by then; where a clock was set back, some of them rest again."""
        # Every group is looked at again then: the buckets tell who has rested since, and not who rests once
        # more.
        back = now_ns < self._now_ns
        self._now_ns = now_ns
        self._settle(list(self._groups.values()) if back else list(self._resting.below(now_ns + 1)))

    def in_order(self, without: frozenset[UUID] = frozenset()) -> Iterator[BufferEntry]:
        """The experiences that may be planned now, the first first."""
        entries = chain.from_iterable(map(_entries, self._ordered))
        return (entry for entry in entries if entry.member.experience not in without) if without else entries

    def lowest(self) -> Iterator[BufferEntry]:
        """The experiences that may be planned now, from the last group on."""
        return chain.from_iterable(map(_entries, reversed(self._ordered)))

    def older_than(self, version: int) -> Iterator[BufferEntry]:
        """The experiences that began with older weights, whether they rest or not."""
        for group in self._by_version.below(version):
            yield from (entry for entry in group.entries.values() if entry.member.oldest_version < version)

    def _group(self, id: UUID) -> _Group:
        group = self._groups.get(id.int)
        if group is None:
            group = self._groups[id.int] = _Group(id)
        return group

    def _settle(self, groups: Iterable[_Group]) -> None:
        """Puts groups in their places after their experiences changed or have rested."""
        now_ns = self._now_ns
        moved = list[ReadyGroup]()
        for group in groups:
            entries = group.entries.values()
            awake = [entry for entry in entries if entry.eligible_at_ns <= now_ns]
            resting = () if len(awake) == len(entries) else [each.eligible_at_ns for each in entries]
            rests_until_ns = min((at_ns for at_ns in resting if at_ns > now_ns), default=None)
            self._resting.move(group, group.rests_until_ns, rests_until_ns)
            group.rests_until_ns = rests_until_ns
            oldest_version = min(map(_oldest, entries), default=None)
            self._by_version.move(group, group.oldest_version, oldest_version)
            group.oldest_version = oldest_version
            if group.ready is not None:
                self._ordered.remove(group.ready)
                self._awake -= len(group.ready.entries)
            group.ready = self._ready(group.id, awake) if awake else None
            if group.ready is not None:
                moved.append(group.ready)
                self._awake += len(awake)
            elif not entries:
                del self._groups[group.id.int]
        # All at once: the list sorts many in one go faster than it finds the place of each.
        self._ordered.update(moved)

    def _ready(self, group: UUID, entries: list[BufferEntry]) -> ReadyGroup:
        entries.sort(key=_index)
        first = entries[0]
        oldest_version = min(map(_oldest, entries))
        ready = ReadyGroup(group, first.group.offset, first.sequence, self._urgency(entries), oldest_version, entries)
        ready.order = self._order(ready)
        return ready

    def _urgency(self, entries: list[BufferEntry]) -> float:
        """The highest priority; one that is no number counts as the lowest, for no order has a place for it."""
        priorities = list(map(self._priority, entries))
        # NaN is neither smaller nor larger than anything, so a sorted list that holds one finds nothing any
        # more.
        if any(map(math.isnan, priorities)):
            priorities = [-math.inf if math.isnan(each) else each for each in priorities]
        return max(priorities)
