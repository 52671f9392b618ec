"""Every experiment in the log, by state and in order of submission: a fold of the spines' life events."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.streams import topics
from rftd.streams.deadletters import head_of, understood_with
from rftd.streams.envelope import Record
from rftd.streams.events import experiment
from rftd.streams.fencing import FenceView
from rftd.streams.folds.spine import Kept, Spine, Status
from rftd.streams.log import EventLog, start_of
from rftd.streams.spec import ExperimentSpec
from rftd.streams.topics import Partition


class Entry(msgspec.Struct, kw_only=True):
    """One experiment."""

    id: UUID
    name: str
    job_dir: str
    submitted_ns: int
    spine_offset: int
    """Where on the spine it was submitted."""
    spine: Spine

    @property
    def spec(self) -> ExperimentSpec:
        """As it was submitted."""
        assert self.spine.spec is not None
        return self.spine.spec

    @property
    def status(self) -> Status | None:
        return self.spine.status


class Registry:
    """Reads only life events: payloads of plans and steps are not decoded."""

    def __init__(self, log: EventLog) -> None:
        partitions = [partition for partition in topics.TRUTH if partition.stream == topics.EXPERIMENTS]
        self._log = log
        self._fences = FenceView()
        self._subscription = log.subscribe(start_of(partitions))
        self.entries: dict[UUID, Entry] = {}

    async def catch_up(self) -> None:
        """Reads everything up to the present heads."""
        heads = await self._log.heads()
        goals = {p: heads[p].next_offset for p in self._subscription.positions if p in heads}
        while any(self._subscription.positions[partition] < goal for partition, goal in goals.items()):
            await self.pump(1.0)

    async def pump(self, wait_s: float) -> int:
        """Reads what has arrived, waiting at most `wait_s`; returns how many records."""
        records = await self._subscription.next(wait_s=wait_s)
        for record in records:
            self._take(record)
        return len(records)

    async def close(self) -> None:
        """Ends the subscription."""
        await self._subscription.close()

    def position(self) -> dict[Partition, int]:
        """How far it has read."""
        return dict(self._subscription.positions)

    def line(self) -> list[Entry]:
        """Whose turn it is, in order: those that are under way, then those that wait."""
        return [*self.under_way(), *self.queue()]

    def under_way(self) -> list[Entry]:
        """Experiments that have begun and not ended, in the order in which they would be taken up again."""
        return _in_order(self.entries.values(), Status.RUNNING, Status.PAUSED)

    def queue(self) -> list[Entry]:
        """Experiments that wait for their turn, the next first."""
        return _in_order(self.entries.values(), Status.QUEUED)

    def _take(self, record: Record) -> None:
        head = head_of(record)
        if head is None or head.experiment is None:
            return
        if not (head.type.startswith("experiment.") or head.type == "fence"):
            return
        decoded = understood_with(head, record)
        if decoded is None or not self._fences.admit(record.partition, head, decoded.event):
            return
        event = decoded.event
        if isinstance(event, experiment.ExperimentSubmitted) and head.experiment not in self.entries:
            self.entries[head.experiment] = Entry(
                id=head.experiment,
                name=event.spec.name,
                job_dir=event.spec.job_dir,
                submitted_ns=head.time_ns,
                spine_offset=record.offset,
                spine=Spine(),
            )
        if (entry := self.entries.get(head.experiment)) is not None:
            entry.spine.apply(decoded)


def _in_order(entries: Iterable[Entry], *states: Status) -> list[Entry]:
    """By priority, then in order of submission."""
    chosen = (each for each in entries if each.status in states)
    return sorted(chosen, key=lambda each: (-each.spine.priority, each.submitted_ns, each.id))


async def find_entry(log: EventLog, wanted: str) -> Entry:
    """The experiment that `wanted` names, by the log alone. Raises NotFoundError, UsageError."""
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    known = sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id))
    base, _, attempt = wanted.rpartition("@")
    attempts = [entry for entry in known if entry.name == base]
    if attempt.isascii() and attempt.isdigit() and 0 < int(attempt) <= len(attempts):
        return attempts[int(attempt) - 1]
    prefix = wanted.replace("-", "").lower()
    found = [entry for entry in known if entry.name == wanted]
    found = [entry for entry in found if entry.spine.kept is not Kept.REMOVED] or found
    found = found or [entry for entry in known if prefix and entry.id.hex.startswith(prefix)]
    if not found:
        names = ", ".join(entry.name for entry in known[-8:])
        raise NotFoundError(f"no experiment {wanted!r} in this log", fix=f"known: {names}" if names else None)
    if len(found) > 1:
        candidates = ", ".join(f"{entry.name} ({entry.id})" for entry in found[-8:])
        raise UsageError(f"{wanted!r} names {len(found)} experiments", fix=f"use the id of one of {candidates}")
    return found[0]
