"""A log on a table: drafts in the order of their writing, with the place that an empty log will give each."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import numpy as np

from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events import experience, task
from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.log.chain import GENESIS, Mark, link
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.log.writers import holder_source, source_of


class Recorder:
    """Writes events as any author, and knows their offsets and chains beforehand."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.ids = SeededIds(self.clock, seed)
        self.drafts: list[Draft] = []
        self.records: list[Record] = []
        self._heads: dict[Partition, Mark] = {}
        self._epochs: dict[tuple[Partition, UUID | None, str], int] = {}
        self._owners: dict[tuple[Partition, UUID | None, str, int], str] = {}
        """The source of the owner that each epoch of a role was given to."""
        self._holders: dict[UUID, str] = {}
        """The source of the worker that each lease was given to."""

    def write(
        self,
        event: Event,
        experiment: UUID | None,
        *,
        role: str | None = None,
        epoch: int | None = None,
        key: UUID | None = None,
        partition: Partition | None = None,
        id: UUID | None = None,
        source: str = "",
    ) -> Position:
        """Appends one event; a role writes under its present epoch unless told otherwise.

        Without a `role` the type's owner writes it. A role that has no fence there takes its first one. Without a
        `source` the owner of its role writes it, and the holder of its lease what answers one.
        """
        definition = definition_of(type(event))
        place = partition or partition_of(definition.stream, key or experiment or UUID(int=0))
        if role is None:
            role = "" if definition.commanded else definition.owner
        if role and epoch is None:
            if (place, experiment, role) not in self._epochs:
                self.fence(role, experiment, place)
            epoch = self._epochs[place, experiment, role]
        self.clock.advance(0.01)
        if isinstance(event, task.TaskLeased | task.EvalLeased):
            self._holders[event.lease] = source_of("explorer", event.worker)
        if isinstance(event, experience.ExperienceProduced | experience.RolloutFailed | experience.EvalScored):
            source = source or self._holders.get(event.lease, "")
        if isinstance(event, Fence):
            owner = holder_source(event.role, event.owner)
            self._owners.setdefault((place, experiment, event.role, event.epoch), owner)
            source = source or owner
        source = source or self._owners.get((place, experiment, role, epoch or 0)) or role or "test"
        writer = Writer(source=source, clock=self.clock, ids=self.ids, role=role, epoch=epoch or 0)
        draft = writer.draft(event, experiment=experiment, key=key, partition=partition, id=id)
        return self.put(draft)

    def fence(self, role: str, experiment: UUID | None, partition: Partition) -> UUID:
        """A new owner of a role in one partition."""
        place = (partition, experiment, role)
        previous = self._epochs.get(place, 0)
        self._epochs[place] = previous + 1
        owner = self.ids.new()
        fence = Fence(role=role, epoch=previous + 1, previous=previous, owner=owner)
        self.write(fence, experiment, role=role, epoch=previous + 1, partition=partition)
        return owner

    def put(self, draft: Draft) -> Position:
        """Appends a draft as it is."""
        head = self._heads.get(draft.partition, Mark(0, GENESIS))
        chain = link(head.chain, draft.head, draft.value)
        self.drafts.append(draft)
        self.records.append(Record(draft.partition, head.next_offset, chain, draft.head, draft.value))
        self._heads[draft.partition] = Mark(head.next_offset + 1, chain)
        return Position(draft.partition, head.next_offset)


def interleaved(drafts: Iterable[Draft], seed: int) -> list[Draft]:
    """The drafts in another order that leaves each partition's order as it is."""
    queues: dict[Partition, list[Draft]] = {}
    for draft in drafts:
        queues.setdefault(draft.partition, []).append(draft)
    for queue in queues.values():
        queue.reverse()
    random = np.random.default_rng(seed)
    mixed: list[Draft] = []
    while queues:
        partition = sorted(queues)[int(random.integers(len(queues)))]
        mixed.append(queues[partition].pop())
        if not queues[partition]:
            del queues[partition]
    return mixed
