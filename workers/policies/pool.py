"""`Pool`: what may be trained, in the order of a policy: an index in memory of ids, priorities and versions only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TypeAlias
from uuid import UUID

import msgspec
from sortedcontainers import SortedDict, SortedKeyList

from rftd.streams.folds.ledger import Waiting

Order: TypeAlias = tuple[float, ...]
Priority: TypeAlias = Callable[[Waiting], float]

_index = attrgetter("index")


class Ready(msgspec.Struct, eq=False):
    """The experiences of one group that may be trained now. They stay together in every order."""

    group: UUID
    offset: int
    """Of its `group.closed`: groups that closed earlier have smaller ones."""
    sequence: int
    """Its place in the dataset."""
    priority: float
    """The highest of its experiences'."""
    oldest_version: int
    entries: list[Waiting]
    """In the order of the group."""
    order: Order = ()


class Pool:
    """Experiences of one stage that may be planned, or may be once they have rested.

    Changes and the next item in order take logarithmic time, so 100,000 that wait cost a plan nothing.
    """

    def __init__(self, order: Callable[[Ready], Order], priority: Priority, entries: Iterable[Waiting] = ()) -> None:
        self._order = order
        self._priority = priority
        self._entries: dict[UUID, Waiting] = {}
        self._groups: dict[UUID, Ready] = {}
        self._ordered: SortedKeyList = SortedKeyList(key=attrgetter("order"))
        self._by_version: SortedDict = SortedDict()
        self._resting: list[tuple[int, UUID]] = []
        self._asleep: set[UUID] = set()
        self._now_ns = 0
        for entry in entries:
            self.put(entry)

    def __len__(self) -> int:
        """Experiences that may be planned now."""
        return len(self._entries) - len(self._asleep)

    @property
    def size(self) -> int:
        """All of them, those that rest too."""
        return len(self._entries)

    @property
    def next_eligible_ns(self) -> int | None:
        """When the next one has rested; None if none rests."""
        while self._resting:
            at_ns, id = self._resting[0]
            if id in self._asleep and self._entries[id].eligible_at_ns == at_ns:
                return at_ns
            heapq.heappop(self._resting)
        return None

    @property
    def oldest_version(self) -> int | None:
        """The oldest weight version that any of them began with; None if there are none."""
        return int(self._by_version.peekitem(0)[0]) if self._by_version else None

    def put(self, entry: Waiting) -> None:
        """Takes an experience in, or as it is now."""
        id = entry.member.experience
        self.drop(id)
        self._entries[id] = entry
        self._by_version.setdefault(entry.member.oldest_version, {})[id] = None
        if entry.eligible_at_ns > self._now_ns:
            self._asleep.add(id)
            heapq.heappush(self._resting, (entry.eligible_at_ns, id))
        else:
            self._show(entry)

    def drop(self, experience: UUID) -> None:
        """Forgets an experience, if it is there."""
        entry = self._entries.pop(experience, None)
        if entry is None:
            return
        version = entry.member.oldest_version
        del self._by_version[version][experience]
        if not self._by_version[version]:
            del self._by_version[version]
        if experience in self._asleep:
            self._asleep.discard(experience)
        else:
            self._hide(entry)

    def awake(self, now_ns: int) -> None:
        """Those that have rested by then may be planned; a clock that was set back changes nothing."""
        self._now_ns = max(now_ns, self._now_ns)
        while self._resting and self._resting[0][0] <= self._now_ns:
            at_ns, id = heapq.heappop(self._resting)
            # What was put again meanwhile is on the heap more than once.
            if id in self._asleep and self._entries[id].eligible_at_ns == at_ns:
                self._asleep.discard(id)
                self._show(self._entries[id])

    def in_order(self, without: frozenset[UUID] = frozenset()) -> Iterator[Waiting]:
        """Those that may be planned now, the first first."""
        for ready in self._ordered:
            if without:
                yield from (entry for entry in ready.entries if entry.member.experience not in without)
            else:
                yield from ready.entries

    def lowest(self) -> Iterator[Waiting]:
        """The same from the last group on."""
        for ready in reversed(self._ordered):
            yield from ready.entries

    def older_than(self, version: int) -> Iterator[Waiting]:
        """Those that began with older weights, whether they rest or not."""
        for oldest, ids in self._by_version.items():
            if oldest >= version:
                return
            yield from (self._entries[id] for id in ids)

    def _show(self, entry: Waiting) -> None:
        priority, oldest = self._rank(entry), entry.member.oldest_version
        ready = self._groups.get(entry.group.group)
        if ready is None:
            ready = Ready(entry.group.group, entry.group.offset, entry.sequence, priority, oldest, [entry])
            self._groups[ready.group] = ready
        else:
            self._ordered.remove(ready)
            ready.entries.append(entry)
            ready.entries.sort(key=_index)
            ready.priority, ready.oldest_version = max(ready.priority, priority), min(ready.oldest_version, oldest)
        ready.order = self._order(ready)
        self._ordered.add(ready)

    def _hide(self, entry: Waiting) -> None:
        ready = self._groups[entry.group.group]
        self._ordered.remove(ready)
        ready.entries.remove(entry)
        if not ready.entries:
            del self._groups[ready.group]
            return
        ready.priority = max(map(self._rank, ready.entries))
        ready.oldest_version = min(each.member.oldest_version for each in ready.entries)
        ready.order = self._order(ready)
        self._ordered.add(ready)

    def _rank(self, entry: Waiting) -> float:
        """The priority; what is no number is last, for no order has a place for it."""
        priority = self._priority(entry)
        return -math.inf if math.isnan(priority) else priority
