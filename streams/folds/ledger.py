"""The ledger: every experience of a closed group is waiting, planned or retired, and the books balance (rule 7)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.codec import Decoded
from rftd.streams.events import batch, task


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An experience that may be planned: an index entry; its payload stays in the log."""

    member: task.Member
    group: batch.GroupRef
    index: int
    """Of the member in its group."""
    stage: int
    group_size: int
    """Members of its group."""
    sequence: int
    """The group's place in its stage."""
    queue_order: tuple[float, int, int]
    """Highest priority first, then as their groups closed, then as in the group."""


class Books(msgspec.Struct):
    """Counts that must balance: produced = waiting + cooling + planned + retired."""

    produced: int = 0
    planned: int = 0
    retired: dict[str, int] = {}
    failed_rollouts: int = 0

    def as_counts(self, waiting: int) -> dict[str, int]:
        """The books by name, with `balance`, which is zero."""
        retired = sum(self.retired.values())
        return {
            "produced": self.produced,
            "waiting": waiting,
            "cooling": 0,
            "planned": self.planned,
            "retired": retired,
            "balance": self.produced - waiting - self.planned - retired,
        }


class Ledger(msgspec.Struct):
    """Experiences of closed groups. Plans and retirements may be read before the group they name."""

    waiting: dict[UUID, Waiting] = {}
    """In the order in which their groups closed."""
    group_sizes: dict[int, int] = {}
    """How many of them come from groups of so many members."""
    oldest_versions: dict[int, int] = {}
    """How many of them begin with each weight version."""
    books: Books = msgspec.field(default_factory=Books)
    planned_in_stage: dict[int, int] = {}
    _ahead: dict[UUID, UUID | None] = {}
    """Planned (by the batch named) or retired (None), and their group not read yet."""
    _items: dict[UUID, dict[UUID, Waiting | None]] = {}
    """Of batches that may still be abandoned; None until the item's group is read."""
    _stage_of: dict[UUID, int] = {}
    _seen: set[UUID] = set()
    """Groups that closed, batches that were planned, and events that retired: each counts once."""

    def apply(self, decoded: Decoded) -> None:
        """Takes in group.closed, batch.planned, batch.abandoned and experience.retired."""
        event = decoded.event
        match event:
            case task.GroupClosed():
                self._closed(event, decoded)
            case batch.BatchPlanned():
                self._planned(event)
            case batch.ExperienceRetired() if self._first(decoded.head.id):
                for experience in event.experiences:
                    self._leave(experience, None)
                self.books.retired[event.reason] = self.books.retired.get(event.reason, 0) + len(event.experiences)
            case batch.BatchAbandoned():
                self._abandoned(event)
            case _:
                pass

    def forget(self, batch_id: UUID) -> None:
        """Drops what is kept for the case that a batch is abandoned; it was executed."""
        self._items.pop(batch_id, None)
        self._stage_of.pop(batch_id, None)

    def _first(self, id: UUID) -> bool:
        if id in self._seen:
            return False
        self._seen.add(id)
        return True

    def _closed(self, event: task.GroupClosed, decoded: Decoded) -> None:
        if not self._first(event.group):
            return
        self.books.produced += len(event.members)
        self.books.failed_rollouts += event.failed
        group = batch.GroupRef(event.group, decoded.partition.number, decoded.offset)
        for index, member in enumerate(event.members):
            order = (-member.priority, group.offset, index)
            entry = Waiting(member, group, index, event.stage, len(event.members), event.sequence, order)
            if member.experience not in self._ahead:
                self._enter(entry)
            elif (planned_in := self._ahead.pop(member.experience)) in self._items:
                self._items[planned_in][member.experience] = entry

    def _leave(self, experience: UUID, planned_in: UUID | None) -> Waiting | None:
        entry = self.waiting.pop(experience, None)
        if entry is None:
            self._ahead[experience] = planned_in
        else:
            _count(self.group_sizes, entry.group_size, -1)
            _count(self.oldest_versions, entry.member.oldest_version, -1)
        return entry

    def _enter(self, entry: Waiting) -> None:
        self.waiting[entry.member.experience] = entry
        _count(self.group_sizes, entry.group_size, 1)
        _count(self.oldest_versions, entry.member.oldest_version, 1)

    def _planned(self, event: batch.BatchPlanned) -> None:
        if not self._first(event.batch):
            return
        items = {item.experience: self._leave(item.experience, event.batch) for item in event.experiences}
        self.books.planned += len(items)
        self.planned_in_stage[event.stage] = self.planned_in_stage.get(event.stage, 0) + len(items)
        self._items[event.batch] = items
        self._stage_of[event.batch] = event.stage

    def _abandoned(self, event: batch.BatchAbandoned) -> None:
        items = self._items.pop(event.batch, None)
        if items is None:
            return
        self.books.planned -= len(items)
        self.planned_in_stage[self._stage_of.pop(event.batch)] -= len(items)
        for experience, entry in items.items():
            if entry is None:
                self._ahead.pop(experience, None)
            else:
                self._enter(entry)


def _count(counts: dict[int, int], key: int, change: int) -> None:
    """Adds; what reaches zero is dropped, so that the keys are those that are there."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
