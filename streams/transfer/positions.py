"""Which fields of which events are places in the log, in one function, and what can be done with them.

| event | fields |
|---|---|
| experiment.accepted | `start`: heads below which nothing of the experiment lies |
| fence, checkpoint.committed | `heads`: what their writer remembers of the log (rule 10) |
| step.completed, checkpoint.committed | `spine`: a digest over records whose places change, so it is left out |
| batch.planned | `experiences`, `groups`: places; `observed`: how far was read (rule 6) |
| experience.retired | `observed` |
| group.closed | `members`: places |
| record.dead_lettered, record.retried, record.dropped | the record that it points to |
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from rftd.ops.errors import ArchiveError
from rftd.streams import topics
from rftd.streams.chain import Heads
from rftd.streams.events.batch import BatchPlanned, ExperienceRetired, ObservedAt
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentAccepted, Fence, HeadRef
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.events.task import GroupClosed
from rftd.streams.events.worker import RecordDeadLettered, RecordDropped, RecordRetried
from rftd.streams.role import as_refs
from rftd.streams.topics import Partition
from rftd.streams.transfer.places import Places

NOWHERE: Final = -1
"""Where a dead letter points whose record was not the experiment's."""

_replace: Final = msgspec.structs.replace


class Mapper(Protocol):
    """What becomes of each kind of place."""

    def record(self, partition: Partition, offset: int) -> int:
        """Of one record that must be there."""
        ...

    def bound(self, partition: Partition, next_offset: int) -> int:
        """Of the end of what was read."""
        ...

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Of remembered heads."""
        ...

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        """Of the heads below which nothing of the experiment lies."""
        ...

    def pointer(self, partition: Partition, offset: int) -> int:
        """Of one record that may be missing."""
        ...


def rewrite(event: Event, mapper: Mapper) -> Event:
    """The event with each of its places as the mapper has it; the same object if it has none."""
    match event:
        case BatchPlanned():
            experiences = tuple(
                _replace(item, offset=mapper.record(Partition(topics.EXPERIENCES, item.partition), item.offset))
                for item in event.experiences
            )
            groups = tuple(
                _replace(group, offset=mapper.record(Partition(topics.TASKS, group.partition), group.offset))
                for group in event.groups
            )
            return _replace(event, experiences=experiences, groups=groups, observed=_seen(event.observed, mapper))
        case ExperienceRetired():
            return _replace(event, observed=_seen(event.observed, mapper))
        case GroupClosed():
            members = tuple(
                _replace(member, offset=mapper.record(Partition(topics.EXPERIENCES, member.partition), member.offset))
                for member in event.members
            )
            return _replace(event, members=members)
        case ExperimentAccepted():
            return _replace(event, start=mapper.start(event.start))
        case CheckpointCommitted():
            return _replace(event, heads=mapper.heads(event.heads), spine=None)
        case StepCompleted():
            return _replace(event, spine=None) if event.spine is not None else event
        case Fence():
            return _replace(event, heads=mapper.heads(event.heads)) if event.heads else event
        case RecordDeadLettered() | RecordRetried() | RecordDropped():
            return _replace(event, offset=mapper.pointer(Partition(event.stream, event.partition), event.offset))
        case _:
            return event


def _seen(observed: tuple[ObservedAt, ...], mapper: Mapper) -> tuple[ObservedAt, ...]:
    return tuple(
        _replace(seen, next_offset=mapper.bound(Partition(seen.stream, seen.partition), seen.next_offset))
        for seen in observed
    )


class Blank:
    """Every place becomes nothing: what is left must be equal in every log that holds the event."""

    def record(self, partition: Partition, offset: int) -> int:
        return 0

    def bound(self, partition: Partition, next_offset: int) -> int:
        return 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return ()

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return ()

    def pointer(self, partition: Partition, offset: int) -> int:
        return 0


class Needs:
    """Collects up to where each partition must be appended before the event may be."""

    def __init__(self) -> None:
        self.wanted: dict[Partition, int] = {}

    def record(self, partition: Partition, offset: int) -> int:
        self._want(partition, offset + 1)
        return offset

    def bound(self, partition: Partition, next_offset: int) -> int:
        self._want(partition, next_offset)
        return next_offset

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        for ref in refs:
            self._want(Partition(ref.stream, ref.partition), ref.next_offset)
        return refs

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return refs

    def pointer(self, partition: Partition, offset: int) -> int:
        return self.record(partition, offset)

    def _want(self, partition: Partition, next_offset: int) -> None:
        self.wanted[partition] = max(next_offset, self.wanted.get(partition, 0))


class Moved:
    """Old places become new ones. `before` are the destination's heads below which it holds nothing of the experiment.

    The end of what was read becomes the end of what the experiment itself has there: what others have between is none
    of its business. Of remembered heads those stay that the destination can vouch for, with its own chains, which
    `chains` has by the place after their record.
    """

    def __init__(self, places: Places, before: Heads, chains: dict[tuple[Partition, int], bytes]) -> None:
        self._places = places
        self._before = before
        self._chains = chains

    def record(self, partition: Partition, offset: int) -> int:
        found = self._places.exact(partition, offset)
        if found is None:
            raise ArchiveError(f"it names a record that the export does not hold: {partition}@{offset}")
        return found

    def bound(self, partition: Partition, next_offset: int) -> int:
        found = self._places.bound(partition, next_offset)
        if found is not None:
            return found
        return self._before[partition].next_offset if partition in self._before else 0

    def heads(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        kept = []
        for ref in refs:
            partition = Partition(ref.stream, ref.partition)
            end = self._places.bound(partition, ref.next_offset)
            chain = self._chains.get((partition, end)) if end is not None else None
            if end is not None and chain is not None:
                kept.append(HeadRef(ref.stream, ref.partition, end, chain))
        return tuple(kept)

    def start(self, refs: tuple[HeadRef, ...]) -> tuple[HeadRef, ...]:
        return as_refs(self._before)

    def pointer(self, partition: Partition, offset: int) -> int:
        found = self._places.exact(partition, offset)
        return NOWHERE if found is None else found
