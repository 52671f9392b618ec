"""The replay buffer: every experience of a closed group is waiting, cooling, planned or retired.

Its counts balance: produced = waiting + cooling + planned + retired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from rftd.streams.events import batch, task
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.ranges import ClosedGroups, PlannedBatches, Recent
from rftd.streams.log.envelope import Decoded


class BufferEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Index entry of an experience that may be planned, now or after its cooldown; its payload stays in the log."""

    member: task.Member
    """Reward, lengths and versions of the experience."""
    group: batch.GroupRef
    """Position of the event that closed the experience's group."""
    index: int
    """Index of the experience among the members of its group, from 0."""
    stage: int
    """Index of the stage in the specification."""
    group_size: int
    """Number of members of its group, without those removed by the experience pipeline."""
    sequence: int
    """Position of the group's task in the dataset's order."""
    priority: float
    """Priority tag, as produced or as changed by an event."""
    uses: int = 0
    """Number of plans naming the experience until now."""
    eligible_at_ns: int = 0
    """Earliest time of the next plan: the end of the cooldown; 0 before the first plan."""
    dropped_by: int = -1
    """Index of the experience pipeline's operator that removed the experience, to be retired; -1 for a kept one."""


Changes: TypeAlias = Mapping[UUID, BufferEntry | None]
"""Changed experiences by id: the present entry, or None for an experience that may not be planned any more."""


class BufferBooks(msgspec.Struct):
    """Counts that always balance: produced = waiting + cooling + planned + retired."""

    produced: int = 0
    """Number of experiences of closed groups."""
    planned: int = 0
    """Number of experiences that have been planned and will not be again."""
    retired: dict[str, int] = {}
    """Number of retired experiences by reason."""
    failed_rollouts: int = 0
    """Number of failed rollouts of closed groups."""


class Ahead(msgspec.Struct, frozen=True):
    """What plans and retirements said about an experience whose group, in another partition, is not read yet."""

    gone: bool = False
    """True if the experience was retired, or planned for the last time."""
    uses: int = 0
    """Number of the last planned use."""
    eligible_at_ns: int = 0
    """End of the cooldown after the last planned use, in nanoseconds since 1970."""


_NONE_AHEAD: Final = Ahead()
"""State of an experience not named by any plan or retirement."""


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An experience of a planned batch, kept while the batch may still be abandoned."""

    entry: BufferEntry | None
    """The entry before the plan; None while its group is not read."""
    use: int
    """Number of this use, from 1."""
    last: bool
    """True if this is the experience's last use."""


class ReplayBuffer(msgspec.Struct):
    """The experiences of closed groups; plans and retirements may be read before the groups they name."""

    waiting: dict[UUID, BufferEntry] = {}
    """Experiences never planned, by id, in the order in which their groups closed."""
    cooling: dict[UUID, BufferEntry] = {}
    """Experiences planned before, which may be planned again after their cooldown, by id."""
    group_sizes: dict[int, int] = {}
    """Number of waiting experiences by the size of their group."""
    books: BufferBooks = msgspec.field(default_factory=BufferBooks)
    """Counts of experiences."""
    given_up: dict[UUID, str] = {}
    """Experiences that the planner has to retire (their payload is lost), with the reason."""
    planned_in_stage: dict[int, int] = {}
    """Number of experiences planned at least once, by stage."""
    _ahead: dict[UUID, Ahead] = {}
    """Plans and retirements of experiences whose group is not read yet."""
    _items: dict[UUID, dict[UUID, Item]] = {}
    """The items of batches that may still be abandoned, by batch."""
    _stage_of: dict[UUID, int] = {}
    """Stage of each batch that may be abandoned."""
    _priorities: dict[UUID, float] = {}
    """Changed priority tags, by group."""
    _closed: ClosedGroups = msgspec.field(default_factory=ClosedGroups)
    """Ids of closed groups."""
    _batches: PlannedBatches = msgspec.field(default_factory=PlannedBatches)
    """Steps with a plan."""
    _recent: Recent = msgspec.field(default_factory=Recent)
    """Ids of the newest events retiring or tagging experiences, so that a repeated one is ignored."""

    def counts(self) -> dict[str, int]:
        """Returns the counts by name, with `balance`, which is always zero."""
        retired = sum(self.books.retired.values())
        total = len(self.waiting) + len(self.cooling) + self.books.planned + retired
        return {
            "produced": self.books.produced,
            "waiting": len(self.waiting),
            "cooling": len(self.cooling),
            "planned": self.books.planned,
            "retired": retired,
            "balance": self.books.produced - total,
        }

    def begin(self, version: int) -> None:
        """Sets the weight version after which the next batch is planned, as known from the spine."""
        self._batches.begin(version)

    def apply(self, decoded: Decoded) -> Changes:
        """Folds an event of groups, plans or retirements; returns the experiences that it changed."""
        event = decoded.event
        if isinstance(event, StepCompleted):
            self._fold_step(event)
            return {}
        if not self._is_new(decoded):
            return {}
        match event:
            case task.GroupClosed():
                return self._fold_closing(event, decoded)
            case batch.BatchPlanned():
                return self._fold_plan(event)
            case batch.ExperienceRetired():
                return self._fold_retirement(event)
            case batch.ExperiencePrioritized():
                return self._fold_priority(event)
            case batch.BatchAbandoned():
                return self._fold_abandoned(event)
            case batch.ExperienceGivenUp():
                self.given_up.setdefault(event.experience, event.reason)
                return {}
            case _:
                return {}

    def _is_new(self, decoded: Decoded) -> bool:
        """False for an event already folded."""
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

    def _fold_closing(self, event: task.GroupClosed, decoded: Decoded) -> Changes:
        """Adds the experiences of a closed group, with the pipeline's rewards."""
        size = len(event.members)
        self.books.produced += size
        self.books.failed_rollouts += event.failed
        group = batch.GroupRef(event.group, decoded.partition.number, decoded.offset)
        tag = self._priorities.get(event.group)
        if event.verdicts:
            size = sum(verdict.dropped_by < 0 for verdict in event.verdicts)
        buffered_by_id = {
            member.experience: BufferEntry(
                member, group, index, event.stage, size, event.sequence, member.priority if tag is None else tag
            )
            for index, member in enumerate(event.members)
        }
        for verdict, (id, buffered) in zip(event.verdicts, list(buffered_by_id.items()), strict=False):
            member = msgspec.structs.replace(buffered.member, reward=verdict.reward)
            buffered_by_id[id] = msgspec.structs.replace(buffered, member=member, dropped_by=verdict.dropped_by)
        # Plans lie in another partition than groups, so a batch may be read before its groups.
        if self._ahead:
            return {id: self._enter_late(buffered) for id, buffered in buffered_by_id.items()}
        if buffered_by_id:
            self.waiting.update(buffered_by_id)
            _count(self.group_sizes, size, len(buffered_by_id))
        return buffered_by_id

    def _enter_late(self, buffered: BufferEntry) -> BufferEntry | None:
        """Enters an experience possibly named before by plans and retirements."""
        id = buffered.member.experience
        ahead = self._ahead.pop(id, _NONE_AHEAD)
        for batch_items in self._items.values() if ahead.uses else ():
            if id in batch_items:
                batch_item = batch_items[id]
                batch_items[id] = Item(
                    msgspec.structs.replace(buffered, uses=batch_item.use - 1), batch_item.use, batch_item.last
                )
        return None if ahead.gone else self._enter(buffered, ahead.uses, ahead.eligible_at_ns)

    def _enter(self, buffered: BufferEntry, uses: int, eligible_at_ns: int) -> BufferEntry:
        """Adds an experience with this number of uses to the waiting or the cooling ones."""
        if uses != buffered.uses or eligible_at_ns != buffered.eligible_at_ns:
            buffered = msgspec.structs.replace(buffered, uses=uses, eligible_at_ns=eligible_at_ns)
        if uses:
            self.cooling[buffered.member.experience] = buffered
        else:
            self.waiting[buffered.member.experience] = buffered
            _count(self.group_sizes, buffered.group_size, 1)
        return buffered

    def _take_out(self, experience: UUID) -> BufferEntry | None:
        """Removes and returns a waiting or cooling experience; None if it is neither."""
        buffered = self.waiting.pop(experience, None)
        if buffered is None:
            return self.cooling.pop(experience, None)
        _count(self.group_sizes, buffered.group_size, -1)
        return buffered

    def _fold_plan(self, event: batch.BatchPlanned) -> Changes:
        """Moves the experiences of a plan to the cooling experiences, or out of the buffer after their last use."""
        batch_items: dict[UUID, Item] = {}
        again: dict[UUID, BufferEntry | None] = {}
        for planned_item in event.experiences:
            id = planned_item.experience
            last = planned_item.use >= event.max_uses > 0
            buffered = self._take_out(id)
            if buffered is None:
                self._ahead[id] = Ahead(last, planned_item.use, event.eligible_at_ns)
                batch_items[id] = Item(None, planned_item.use, last)
                continue
            # Eligible when planned: it returns without a cooldown if the batch is abandoned.
            rested = msgspec.structs.replace(buffered, eligible_at_ns=0) if buffered.eligible_at_ns else buffered
            id = buffered.member.experience  # one object in all containers is found faster than an equal one
            batch_items[id] = Item(rested, planned_item.use, last)
            if not last:
                again[id] = self._enter(buffered, planned_item.use, event.eligible_at_ns)
        self._book(event.stage, batch_items, 1)
        self._items[event.batch] = batch_items
        self._stage_of[event.batch] = event.stage
        return {**dict.fromkeys(batch_items), **again}

    def _fold_step(self, event: StepCompleted) -> None:
        """Drops the items kept for the case of an abandoned batch; the batch was executed."""
        self._batches.complete(event)
        self._items.pop(event.batch, None)
        self._stage_of.pop(event.batch, None)

    def _fold_retirement(self, event: batch.ExperienceRetired) -> Changes:
        """Removes retired experiences, and counts them by reason."""
        for experience in event.experiences:
            self.given_up.pop(experience, None)
            if self._take_out(experience) is None:
                ahead = self._ahead.get(experience, _NONE_AHEAD)
                self._ahead[experience] = msgspec.structs.replace(ahead, gone=True)
        self.books.retired[event.reason] = self.books.retired.get(event.reason, 0) + len(event.experiences)
        return dict.fromkeys(event.experiences)

    def _fold_priority(self, event: batch.ExperiencePrioritized) -> Changes:
        """Changes the priority tag of a group's experiences, in planned batches too."""
        self._priorities[event.group] = event.priority
        changes: dict[UUID, BufferEntry] = {}
        # A search through all experiences: a person tags a group once in a while, and an index would cost every close.
        for container in (self.waiting, self.cooling):
            for experience, buffered in container.items():
                if buffered.group.group == event.group:
                    container[experience] = changes[experience] = msgspec.structs.replace(
                        buffered, priority=event.priority
                    )
        # And in batches that may be abandoned, or the items would come back with the former tag.
        for batch_items in self._items.values():
            for experience, batch_item in batch_items.items():
                if batch_item.entry is not None and batch_item.entry.group.group == event.group:
                    buffered = msgspec.structs.replace(batch_item.entry, priority=event.priority)
                    batch_items[experience] = msgspec.structs.replace(batch_item, entry=buffered)
        return changes

    def _fold_abandoned(self, event: batch.BatchAbandoned) -> Changes:
        """Returns the batch's items to their earlier state, unless used by a later batch or retired since."""
        batch_items = self._items.pop(event.batch, None)
        if batch_items is None:
            return {}
        changes: dict[UUID, BufferEntry] = {}
        for experience, batch_item in batch_items.items():
            if batch_item.entry is None:
                ahead = self._ahead.get(experience, _NONE_AHEAD)
                if ahead.uses == batch_item.use and ahead.gone == batch_item.last:
                    self._return_ahead(experience, batch_item)
            elif batch_item.last:
                changes[experience] = self._enter(
                    batch_item.entry, batch_item.entry.uses, batch_item.entry.eligible_at_ns
                )
            elif (now := self.cooling.get(experience)) is not None and now.uses == batch_item.use:
                self._take_out(experience)
                changes[experience] = self._enter(now, batch_item.use - 1, 0)
        # The books count plans, not the items' present state: the whole batch is subtracted.
        self._book(self._stage_of.pop(event.batch), batch_items, -1)
        return changes

    def _return_ahead(self, experience: UUID, batch_item: Item) -> None:
        """Undoes the plan of an experience whose group is not read yet."""
        back = Ahead(uses=batch_item.use - 1)
        if back.uses:
            self._ahead[experience] = back
        else:
            self._ahead.pop(experience, None)

    def _book(self, stage: int, batch_items: Mapping[UUID, Item], sign: int) -> None:
        """Adds a batch to the books, or subtracts it."""
        first = last = 0
        for batch_item in batch_items.values():
            first += batch_item.use == 1
            last += batch_item.last
        self.books.planned += sign * last
        self.planned_in_stage[stage] = self.planned_in_stage.get(stage, 0) + sign * first


def _count(counts: dict[int, int], key: int, change: int) -> None:
    """Adds a change to a count; a count of zero is deleted, leaving only keys in use."""
    remaining = counts.get(key, 0) + change
    if remaining:
        counts[key] = remaining
    else:
        del counts[key]
