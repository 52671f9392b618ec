"""The ledger: each experience of a closed group waits, rests, is planned or retired: books that balance (rule 7)."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from rftd.streams.codec import Decoded
from rftd.streams.events import batch, task


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An experience that may be planned, now or once it has rested: an index entry; its payload stays in the log."""

    member: task.Member
    group: batch.GroupRef
    index: int
    """Of the member in its group."""
    stage: int
    group_size: int
    """Members of its group."""
    sequence: int
    """The group's place in its stage."""
    priority: float
    """The tag: as it was produced, or as it was changed since."""
    uses: int = 0
    """How often it was planned."""
    eligible_at_ns: int = 0
    """It may not be planned again before this reading of the clock."""


class Books(msgspec.Struct):
    """Counts that must balance: produced = waiting + cooling + planned + retired."""

    produced: int = 0
    planned: int = 0
    """For the last time."""
    retired: dict[str, int] = {}
    failed_rollouts: int = 0


class Ahead(msgspec.Struct, frozen=True):
    """What became of an experience whose group was not read yet."""

    gone: bool = False
    """Retired, or planned for the last time."""
    uses: int = 0
    eligible_at_ns: int = 0


class Item(msgspec.Struct, frozen=True, gc=False):
    """An experience in a batch that may still be abandoned."""

    entry: Waiting | None
    """As it was before; None until its group is read."""
    use: int
    last: bool
    """It may not be planned again."""


class Ledger(msgspec.Struct):
    """Experiences of closed groups. Plans and retirements may be read before the group they name."""

    waiting: dict[UUID, Waiting] = {}
    """Never planned, in the order in which their groups closed."""
    cooling: dict[UUID, Waiting] = {}
    """Planned before, and once they have rested they may be again."""
    group_sizes: dict[int, int] = {}
    """How many of those that wait come from groups of so many members."""
    oldest_versions: dict[int, int] = {}
    """How many of those that wait or rest begin with each weight version."""
    books: Books = msgspec.field(default_factory=Books)
    planned_in_stage: dict[int, int] = {}
    """Experiences that were planned at least once."""
    _ahead: dict[UUID, Ahead] = {}
    _items: dict[UUID, dict[UUID, Item]] = {}
    """Of batches that may still be abandoned."""
    _stage_of: dict[UUID, int] = {}
    _priorities: dict[UUID, float] = {}
    """Tags of groups that were changed."""
    _seen: set[UUID] = set()
    """Groups that closed, batches that were planned, and events that retired: each counts once."""

    def counts(self) -> dict[str, int]:
        """The books by name, with `balance`, which is zero."""
        retired = sum(self.books.retired.values())
        places = len(self.waiting) + len(self.cooling) + self.books.planned + retired
        return {
            "produced": self.books.produced,
            "waiting": len(self.waiting),
            "cooling": len(self.cooling),
            "planned": self.books.planned,
            "retired": retired,
            "balance": self.books.produced - places,
        }

    def entry(self, experience: UUID) -> Waiting | None:
        """The experience, if it waits or rests."""
        return self.waiting.get(experience) or self.cooling.get(experience)

    def apply(self, decoded: Decoded) -> Collection[UUID]:
        """Takes in what groups, plans and retirements say; the experiences that it changed something for."""
        event = decoded.event
        match event:
            case task.GroupClosed():
                return self._closed(event, decoded)
            case batch.BatchPlanned():
                return self._planned(event)
            case batch.ExperienceRetired() if self._first(decoded.head.id):
                return self._retired(event)
            case batch.ExperiencePrioritized() if self._first(decoded.head.id):
                return self._prioritized(event)
            case batch.BatchAbandoned():
                return self._abandoned(event)
            case _:
                return ()

    def forget(self, batch_id: UUID) -> None:
        """Drops what is kept for the case that a batch is abandoned; it was executed."""
        self._items.pop(batch_id, None)
        self._stage_of.pop(batch_id, None)

    def _first(self, id: UUID) -> bool:
        if id in self._seen:
            return False
        self._seen.add(id)
        return True

    def _closed(self, event: task.GroupClosed, decoded: Decoded) -> Collection[UUID]:
        if not self._first(event.group):
            return ()
        self.books.produced += len(event.members)
        self.books.failed_rollouts += event.failed
        group = batch.GroupRef(event.group, decoded.partition.number, decoded.offset)
        for index, member in enumerate(event.members):
            id = member.experience
            priority = self._priorities.get(event.group, member.priority)
            entry = Waiting(member, group, index, event.stage, len(event.members), event.sequence, priority)
            ahead = self._ahead.pop(id, Ahead())
            for items in self._items.values() if ahead.uses else ():
                if id in items:
                    item = items[id]
                    items[id] = Item(msgspec.structs.replace(entry, uses=item.use - 1), item.use, item.last)
            if not ahead.gone:
                self._enter(msgspec.structs.replace(entry, uses=ahead.uses, eligible_at_ns=ahead.eligible_at_ns))
        return [member.experience for member in event.members]

    def _enter(self, entry: Waiting) -> None:
        if entry.uses:
            self.cooling[entry.member.experience] = entry
        else:
            self.waiting[entry.member.experience] = entry
            _count(self.group_sizes, entry.group_size, 1)
        _count(self.oldest_versions, entry.member.oldest_version, 1)

    def _leave(self, experience: UUID) -> Waiting | None:
        entry = self.waiting.pop(experience, None)
        if entry is not None:
            _count(self.group_sizes, entry.group_size, -1)
        else:
            entry = self.cooling.pop(experience, None)
        if entry is not None:
            _count(self.oldest_versions, entry.member.oldest_version, -1)
        return entry

    def _planned(self, event: batch.BatchPlanned) -> Collection[UUID]:
        if not self._first(event.batch):
            return ()
        items: dict[UUID, Item] = {}
        for item in event.experiences:
            last = item.use >= event.max_uses > 0
            entry = self._leave(item.experience)
            before = entry and msgspec.structs.replace(entry, eligible_at_ns=0)  # it had rested
            items[item.experience] = Item(before, item.use, last)
            if entry is None:
                self._ahead[item.experience] = Ahead(last, item.use, event.eligible_at_ns)
            elif not last:
                self._enter(msgspec.structs.replace(entry, uses=item.use, eligible_at_ns=event.eligible_at_ns))
            self.books.planned += last
        self._count_first(event.stage, items, 1)
        self._items[event.batch] = items
        self._stage_of[event.batch] = event.stage
        return items

    def _retired(self, event: batch.ExperienceRetired) -> Collection[UUID]:
        for experience in event.experiences:
            if self._leave(experience) is None:
                self._ahead[experience] = msgspec.structs.replace(self._ahead.get(experience, Ahead()), gone=True)
        self.books.retired[event.reason] = self.books.retired.get(event.reason, 0) + len(event.experiences)
        return event.experiences

    def _prioritized(self, event: batch.ExperiencePrioritized) -> Collection[UUID]:
        self._priorities[event.group] = event.priority
        changed = []
        for place in (self.waiting, self.cooling):
            for experience, entry in place.items():
                if entry.group.group == event.group:
                    place[experience] = msgspec.structs.replace(entry, priority=event.priority)
                    changed.append(experience)
        for items in self._items.values():
            for experience, item in items.items():
                if item.entry is not None and item.entry.group.group == event.group:
                    entry = msgspec.structs.replace(item.entry, priority=event.priority)
                    items[experience] = msgspec.structs.replace(item, entry=entry)
        return changed

    def _abandoned(self, event: batch.BatchAbandoned) -> Collection[UUID]:
        """The items return as they were, unless a later batch used them, too, or they were retired since."""
        items = self._items.pop(event.batch, None)
        if items is None:
            return ()
        for experience, item in items.items():
            self.books.planned -= item.last
            if item.entry is None:
                ahead = self._ahead.get(experience, Ahead())
                if ahead.uses == item.use and ahead.gone == item.last:
                    self._return_ahead(experience, item, ahead)
            elif item.last:
                self._enter(item.entry)
            elif (now := self.cooling.get(experience)) is not None and now.uses == item.use:
                self._leave(experience)
                self._enter(msgspec.structs.replace(now, uses=item.use - 1, eligible_at_ns=0))
        self._count_first(self._stage_of.pop(event.batch), items, -1)
        return items

    def _return_ahead(self, experience: UUID, item: Item, ahead: Ahead) -> None:
        back = Ahead(uses=item.use - 1)
        if back.uses:
            self._ahead[experience] = back
        else:
            self._ahead.pop(experience, None)

    def _count_first(self, stage: int, items: dict[UUID, Item], sign: int) -> None:
        first = sum(item.use == 1 for item in items.values())
        self.planned_in_stage[stage] = self.planned_in_stage.get(stage, 0) + sign * first


def _count(counts: dict[int, int], key: int, change: int) -> None:
    """Adds; what reaches zero is dropped, so that the keys are those that are there."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
