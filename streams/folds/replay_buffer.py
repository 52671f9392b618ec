"""The replay buffer: every experience of a closed group waits, rests, is planned or is retired (rule 7).

Its books balance: produced = waiting + cooling + planned + retired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from rftd.streams.events import batch, task
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.once import PlannedBatches, Recent
from rftd.streams.folds.ranges import ClosedGroups
from rftd.streams.log.codec import Decoded


class BufferEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An experience that may be planned, now or once it has rested: an index entry; its payload stays in the log."""

    member: task.Member
    group: batch.GroupRef
    index: int
    """The place of the member in its group."""
    stage: int
    group_size: int
    """Members of its group."""
    sequence: int
    """The group's place in its stage."""
    priority: float
    """The tag: as it was produced, or as it was changed since."""
    uses: int = 0
    """Times that it was planned."""
    eligible_at_ns: int = 0
    """It may not be planned again before this reading of the clock."""


Changes: TypeAlias = Mapping[UUID, BufferEntry | None]
"""Experiences as they are now; None: it neither waits nor rests."""


class BufferBooks(msgspec.Struct):
    """Counts that must balance: produced = waiting + cooling + planned + retired."""

    produced: int = 0
    planned: int = 0
    """Experiences that were planned for the last time."""
    retired: dict[str, int] = {}
    failed_rollouts: int = 0


class Ahead(msgspec.Struct, frozen=True):
    """The fate of an experience whose group was not read yet."""

    gone: bool = False
    """Retired, or planned for the last time."""
    uses: int = 0
    eligible_at_ns: int = 0


_NONE_AHEAD: Final = Ahead()


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An experience in a batch that may still be abandoned."""

    entry: BufferEntry | None
    """The entry before it was planned; None until its group is read."""
    use: int
    last: bool
    """It may not be planned again."""


class ReplayBuffer(msgspec.Struct):
    """Experiences of closed groups. Plans and retirements may be read before the group they name."""

    waiting: dict[UUID, BufferEntry] = {}
    """Never planned, in the order in which their groups closed."""
    cooling: dict[UUID, BufferEntry] = {}
    """Planned before, and once they have rested they may be again."""
    group_sizes: dict[int, int] = {}
    """Experiences that wait, by the number of members of their groups."""
    books: BufferBooks = msgspec.field(default_factory=BufferBooks)
    given_up: dict[UUID, str] = {}
    """Experiences that the planner has to retire, and why."""
    planned_in_stage: dict[int, int] = {}
    """Experiences that were planned at least once."""
    _ahead: dict[UUID, Ahead] = {}
    _items: dict[UUID, dict[UUID, Item]] = {}
    """The items of batches that may still be abandoned, by batch."""
    _stage_of: dict[UUID, int] = {}
    _priorities: dict[UUID, float] = {}
    """Tags of groups that were changed."""
    _closed: ClosedGroups = msgspec.field(default_factory=ClosedGroups)
    _batches: PlannedBatches = msgspec.field(default_factory=PlannedBatches)
    _recent: Recent = msgspec.field(default_factory=Recent)
    """Events that retired or gave a tag: each counts once."""

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

    def begin(self, version: int) -> None:
        """Sets the weight version after which batches are planned next, as the spine has it."""
        self._batches.begin(version)

    def apply(self, decoded: Decoded) -> Changes:
        """The experiences that an event of groups, plans or retirements changed, after it was taken in."""
        event = decoded.event
        if isinstance(event, StepCompleted):
            self._completed(event)
            return {}
        if not self._new(decoded):
            return {}
        match event:
            case task.GroupClosed():
                return self._close(event, decoded)
            case batch.BatchPlanned():
                return self._planned(event)
            case batch.ExperienceRetired():
                return self._retired(event)
            case batch.ExperiencePrioritized():
                return self._prioritized(event)
            case batch.BatchAbandoned():
                return self._abandoned(event)
            case batch.ExperienceGivenUp():
                self.given_up.setdefault(event.experience, event.reason)
                return {}
            case _:
                return {}

    def _new(self, decoded: Decoded) -> bool:
        """False for an event that was taken in before."""
        event = decoded.event
        match event:
            case task.GroupClosed():
                return self._closed.first(decoded.head.experiment, event.group)
            case batch.BatchPlanned():
                return self._batches.plan(event)
            case batch.BatchAbandoned():
                return self._batches.abandon(event)
            case batch.ExperienceRetired() | batch.ExperiencePrioritized() | batch.ExperienceGivenUp():
                return self._recent.first(decoded.head.id)
            case _:
                return False

    def _close(self, event: task.GroupClosed, decoded: Decoded) -> Changes:
        size = len(event.members)
        self.books.produced += size
        self.books.failed_rollouts += event.failed
        group = batch.GroupRef(event.group, decoded.partition.number, decoded.offset)
        tag = self._priorities.get(event.group)
        entries = {
            member.experience: BufferEntry(
                member, group, index, event.stage, size, event.sequence, member.priority if tag is None else tag
            )
            for index, member in enumerate(event.members)
        }
        # Plans lie in another partition than groups, so a batch may be read before the group it is made of (rule 6).
        if self._ahead:
            return {id: self._late(entry) for id, entry in entries.items()}
        if entries:
            self.waiting.update(entries)
            _count(self.group_sizes, size, size)
        return entries

    def _late(self, entry: BufferEntry) -> BufferEntry | None:
        """Enters an experience that plans and retirements may have named before."""
        id = entry.member.experience
        ahead = self._ahead.pop(id, _NONE_AHEAD)
        for items in self._items.values() if ahead.uses else ():
            if id in items:
                item = items[id]
                items[id] = Item(msgspec.structs.replace(entry, uses=item.use - 1), item.use, item.last)
        return None if ahead.gone else self._enter(entry, ahead.uses, ahead.eligible_at_ns)

    def _enter(self, entry: BufferEntry, uses: int, eligible_at_ns: int) -> BufferEntry:
        """The entry as it waits or rests from here on, used so often."""
        if uses != entry.uses or eligible_at_ns != entry.eligible_at_ns:
            entry = msgspec.structs.replace(entry, uses=uses, eligible_at_ns=eligible_at_ns)
        if uses:
            self.cooling[entry.member.experience] = entry
        else:
            self.waiting[entry.member.experience] = entry
            _count(self.group_sizes, entry.group_size, 1)
        return entry

    def _leave(self, experience: UUID) -> BufferEntry | None:
        entry = self.waiting.pop(experience, None)
        if entry is None:
            return self.cooling.pop(experience, None)
        _count(self.group_sizes, entry.group_size, -1)
        return entry

    def _planned(self, event: batch.BatchPlanned) -> Changes:
        items: dict[UUID, Item] = {}
        again: dict[UUID, BufferEntry | None] = {}
        for item in event.experiences:
            id = item.experience
            last = item.use >= event.max_uses > 0
            entry = self._leave(id)
            if entry is None:
                self._ahead[id] = Ahead(last, item.use, event.eligible_at_ns)
                items[id] = Item(None, item.use, last)
                continue
            # It was eligible when it was planned, so it returns without a rest if the batch is abandoned.
            rested = msgspec.structs.replace(entry, eligible_at_ns=0) if entry.eligible_at_ns else entry
            id = entry.member.experience  # the same object in each place is found faster than an equal one
            items[id] = Item(rested, item.use, last)
            if not last:
                again[id] = self._enter(entry, item.use, event.eligible_at_ns)
        self._book(event.stage, items, 1)
        self._items[event.batch] = items
        self._stage_of[event.batch] = event.stage
        return {**dict.fromkeys(items), **again}

    def _completed(self, event: StepCompleted) -> None:
        """Drops what is kept for the case that a batch is abandoned; it was executed."""
        self._batches.complete(event)
        self._items.pop(event.batch, None)
        self._stage_of.pop(event.batch, None)

    def _retired(self, event: batch.ExperienceRetired) -> Changes:
        for experience in event.experiences:
            self.given_up.pop(experience, None)
            if self._leave(experience) is None:
                ahead = self._ahead.get(experience, _NONE_AHEAD)
                self._ahead[experience] = msgspec.structs.replace(ahead, gone=True)
        self.books.retired[event.reason] = self.books.retired.get(event.reason, 0) + len(event.experiences)
        return dict.fromkeys(event.experiences)

    def _prioritized(self, event: batch.ExperiencePrioritized) -> Changes:
        self._priorities[event.group] = event.priority
        changes: dict[UUID, BufferEntry] = {}
        # A search through all that waits: a person tags a group once in a while, and an index would cost every close.
        for place in (self.waiting, self.cooling):
            for experience, entry in place.items():
                if entry.group.group == event.group:
                    place[experience] = changes[experience] = msgspec.structs.replace(entry, priority=event.priority)
        # And in batches that may be abandoned, or the items would come back with the former tag.
        for items in self._items.values():
            for experience, item in items.items():
                if item.entry is not None and item.entry.group.group == event.group:
                    entry = msgspec.structs.replace(item.entry, priority=event.priority)
                    items[experience] = msgspec.structs.replace(item, entry=entry)
        return changes

    def _abandoned(self, event: batch.BatchAbandoned) -> Changes:
        """The items return as they were, unless a later batch used them, too, or they were retired since."""
        items = self._items.pop(event.batch, None)
        if items is None:
            return {}
        changes: dict[UUID, BufferEntry] = {}
        for experience, item in items.items():
            if item.entry is None:
                ahead = self._ahead.get(experience, _NONE_AHEAD)
                if ahead.uses == item.use and ahead.gone == item.last:
                    self._return_ahead(experience, item)
            elif item.last:
                changes[experience] = self._enter(item.entry, item.entry.uses, item.entry.eligible_at_ns)
            elif (now := self.cooling.get(experience)) is not None and now.uses == item.use:
                self._leave(experience)
                changes[experience] = self._enter(now, item.use - 1, 0)
        # The books are of plans, not of where the items are now: all of the batch is taken out.
        self._book(self._stage_of.pop(event.batch), items, -1)
        return changes

    def _return_ahead(self, experience: UUID, item: Item) -> None:
        back = Ahead(uses=item.use - 1)
        if back.uses:
            self._ahead[experience] = back
        else:
            self._ahead.pop(experience, None)

    def _book(self, stage: int, items: Mapping[UUID, Item], sign: int) -> None:
        """Adds a batch to the books, or takes it out again."""
        first = last = 0
        for item in items.values():
            first += item.use == 1
            last += item.last
        self.books.planned += sign * last
        self.planned_in_stage[stage] = self.planned_in_stage.get(stage, 0) + sign * first


def _count(counts: dict[int, int], key: int, change: int) -> None:
    """Adds; what reaches zero is dropped, so that the keys are those that are there."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
