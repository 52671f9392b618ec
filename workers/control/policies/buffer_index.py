"""`BufferIndex` orders experiences fit for training by a policy's key: by ids, priorities and versions alone."""

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
"""Type of the members of `Buckets`."""


class Buckets(Generic[T]):
    """Members ordered by a number: many share a number and few numbers are in use, so only the numbers are sorted."""

    def __init__(self) -> None:
        """Begins without members."""
        self._buckets: SortedDict = SortedDict()

    @property
    def first(self) -> int | None:
        """Returns the smallest number; None without members."""
        return int(self._buckets.keys()[0]) if self._buckets else None

    def move(self, member: T, old: int | None, new: int | None) -> None:
        """Moves a member from the number `old` to `new`; None stands for absence."""
        if old == new:
            return
        if old is not None:
            bucket = self._buckets[old]
            del bucket[member]
            if not bucket:
                del self._buckets[old]
        if new is not None:
            self._buckets.setdefault(new, {})[member] = None

    def below(self, number: int) -> Iterator[T]:
        """Yields the members under smaller numbers, the smallest number first. Moves are not allowed meanwhile."""
        for bucket_number, bucket in self._buckets.items():
            if bucket_number >= number:
                return
            yield from bucket


Order: TypeAlias = tuple[float, ...]
"""Sort key of a group: smaller keys are trained first."""


class Priority(Protocol):
    """Rank of an experience in training: the highest is first."""

    def __call__(self, experience: BufferEntry, /) -> float:
        """Returns the priority of an experience waiting in the buffer."""
        ...


_index = attrgetter("index")
"""Getter of an experience's position within its group."""
_experiences = attrgetter("entries")
"""Getter of a ready group's experiences."""
_oldest = attrgetter("member.oldest_version")
"""Getter of an experience's oldest weight version."""


class ReadyGroup(msgspec.Struct, eq=False):
    """Experiences of one group fit for training now, adjacent in every order."""

    group: UUID
    """Id of the group."""
    offset: int
    """Offset of the group's `group.closed`: earlier closed groups have smaller ones."""
    sequence: int
    """Position of the group's task in the dataset's order."""
    priority: float
    """The highest priority of its experiences."""
    oldest_version: int
    """Oldest weight version in any of its experiences."""
    entries: list[BufferEntry]
    """Experiences in the order of the group."""
    order: Order = ()
    """Sort key by the stage's policy."""


class _Group(msgspec.Struct, eq=False):
    """A group with all of its experiences, and its positions in the buffer."""

    id: UUID
    """Id of the group."""
    entries: dict[int, BufferEntry] = {}
    """Experiences by the integer of their id."""
    ready: ReadyGroup | None = None
    """The group's ready experiences with their sort key; None while all of them are in their cooldown."""
    oldest_version: int | None = None
    """Oldest weight version of the experiences; None without any."""
    rests_until_ns: int | None = None
    """End of the next cooldown within the group; None without one."""


class BufferIndex:
    """Experiences of one stage in training order, ready now or after a cooldown.

    Only groups concerned by a change are examined: 100,000 waiting groups cost a plan nothing. Changes are passed
    together, so that a group is moved once for all its experiences.
    """

    def __init__(
        self, order: Callable[[ReadyGroup], Order], priority: Priority, experiences: Iterable[BufferEntry] = ()
    ) -> None:
        """Indexes the experiences of a stage; `order` is the policy's sort key of a group, `priority` ranks
        experiences.
        """
        self._order = order
        self._priority = priority
        # Integers and not UUIDs as keys, here and below: Python hashes and compares an int ten times as fast as a UUID.
        self._group_of: dict[int, _Group] = {}
        """Groups by the integers of their experiences' ids."""
        self._groups: dict[int, _Group] = {}
        # A changed group is removed under its old order and inserted under the new one: a key in the list must not
        # change.
        self._ordered: SortedKeyList = SortedKeyList(key=attrgetter("order"))
        self._by_version: Buckets[_Group] = Buckets()
        self._resting: Buckets[_Group] = Buckets()
        self._awake = 0
        self._now_ns = 0
        self.change({experience.member.experience: experience for experience in experiences})

    def __len__(self) -> int:
        """Returns the number of experiences fit for planning now."""
        return self._awake

    @property
    def size(self) -> int:
        """Number of all experiences, including those in their cooldown."""
        return len(self._group_of)

    @property
    def next_eligible_ns(self) -> int | None:
        """Time at which the next cooldown ends; None without one."""
        return self._resting.first

    @property
    def oldest_version(self) -> int | None:
        """Oldest weight version in any experience; None if the buffer is empty."""
        return self._by_version.first

    def change(self, changes: Changes) -> None:
        """Inserts or updates experiences by id; an id mapped to None is removed."""
        changed: dict[_Group, None] = {}
        arriving: _Group | None = None
        for id, experience in changes.items():
            group = self._group_of.get(id.int)
            if experience is None:
                if group is None:
                    continue
                del self._group_of[id.int], group.entries[id.int]
            else:
                if group is None:
                    if (
                        arriving is None or arriving.id is not experience.group.group
                    ):  # most experiences follow one of their group
                        arriving = self._group(experience.group.group)
                    group = self._group_of[id.int] = arriving
                group.entries[id.int] = experience
            changed[group] = None
        self._reorder(changed)

    def take(self, experiences: Iterable[BufferEntry]) -> None:
        """Removes experiences, for example the ones chosen for a batch."""
        changed: dict[_Group, None] = {}
        for experience in experiences:
            number = experience.member.experience.int
            if (group := self._group_of.pop(number, None)) is not None:
                del group.entries[number]
                changed[group] = None
        self._reorder(changed)

    def put(self, experience: BufferEntry) -> None:
        """Inserts or updates one experience."""
        self.change({experience.member.experience: experience})

    def drop(self, experience: UUID) -> None:
        """Removes one experience, if present."""
        self.change({experience: None})

    def awake(self, now_ns: int) -> None:
        """Advances the index to time `now_ns`: experiences whose cooldown is over become ready. After the clock was set
        back, experiences return to their cooldown.
        """
        # Every group is examined then: the buckets tell whose cooldown has ended, and not whose has begun again.
        back = now_ns < self._now_ns
        self._now_ns = now_ns
        self._reorder(list(self._groups.values()) if back else list(self._resting.below(now_ns + 1)))

    def in_order(self, without: frozenset[UUID] = frozenset()) -> Iterator[BufferEntry]:
        """Yields the experiences fit for planning now, in the order of the policy."""
        experiences = chain.from_iterable(map(_experiences, self._ordered))
        return (
            (experience for experience in experiences if experience.member.experience not in without)
            if without
            else experiences
        )

    def lowest(self) -> Iterator[BufferEntry]:
        """Yields the ready experiences in reverse order of groups, the last group first."""
        return chain.from_iterable(map(_experiences, reversed(self._ordered)))

    def older_than(self, version: int) -> Iterator[BufferEntry]:
        """Yields the experiences begun with older weights, including the ones in their cooldown."""
        for group in self._by_version.below(version):
            yield from (
                experience for experience in group.entries.values() if experience.member.oldest_version < version
            )

    def _group(self, id: UUID) -> _Group:
        """Returns the group with this id, creating an empty one if absent."""
        group = self._groups.get(id.int)
        if group is None:
            group = self._groups[id.int] = _Group(id)
        return group

    def _reorder(self, groups: Iterable[_Group]) -> None:
        """Recomputes the ready experiences and the sort position of groups after a change or an ended cooldown."""
        now_ns = self._now_ns
        moved = list[ReadyGroup]()
        for group in groups:
            experiences = group.entries.values()
            awake = [experience for experience in experiences if experience.eligible_at_ns <= now_ns]
            resting = (
                ()
                if len(awake) == len(experiences)
                else [cooling_experience.eligible_at_ns for cooling_experience in experiences]
            )
            rests_until_ns = min((at_ns for at_ns in resting if at_ns > now_ns), default=None)
            self._resting.move(group, group.rests_until_ns, rests_until_ns)
            group.rests_until_ns = rests_until_ns
            oldest_version = min(map(_oldest, experiences), default=None)
            self._by_version.move(group, group.oldest_version, oldest_version)
            group.oldest_version = oldest_version
            if group.ready is not None:
                self._ordered.remove(group.ready)
                self._awake -= len(group.ready.entries)
            group.ready = self._ready(group.id, awake) if awake else None
            if group.ready is not None:
                moved.append(group.ready)
                self._awake += len(awake)
            elif not experiences:
                del self._groups[group.id.int]
        # All at once: the list sorts many together faster than it inserts them one by one.
        self._ordered.update(moved)

    def _ready(self, group: UUID, experiences: list[BufferEntry]) -> ReadyGroup:
        """Returns a group's experiences fit for planning as one ordered unit, with its key."""
        experiences.sort(key=_index)
        first = experiences[0]
        oldest_version = min(map(_oldest, experiences))
        ready = ReadyGroup(
            group, first.group.offset, first.sequence, self._urgency(experiences), oldest_version, experiences
        )
        ready.order = self._order(ready)
        return ready

    def _urgency(self, experiences: list[BufferEntry]) -> float:
        """Returns the highest priority among the experiences; NaN counts as the lowest, because NaN has no position in
        any order.
        """
        priorities = list(map(self._priority, experiences))
        # NaN is neither smaller nor larger than any number, so a sorted list containing one finds nothing any more.
        if any(map(math.isnan, priorities)):
            priorities = [-math.inf if math.isnan(priority) else priority for priority in priorities]
        return max(priorities)
