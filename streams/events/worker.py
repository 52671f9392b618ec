"""Workers: that they live, and what they are doing."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.registry import NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Count, Finite, Index, Integer, Seconds
from rftd.streams.log.log_place import PointerOffset


@event("worker.started", stream=topics.WORKERS, owner=NOBODY)
class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker process joined. Written by itself; its experiment is the envelope's."""

    worker: UUID
    role: str
    """`explorer` or `trainer`."""
    slot: Index
    """The partition of `rftd.tasks` that it reads; -1 for a trainer."""
    host: str
    pid: Index
    process_start_s: Finite
    """The operating system's start time of the process: (host, pid, this) names it for ever."""
    capacity: Count = 0
    """Rollouts that it runs at once."""
    boot_id: str = ""
    """The id of the present start of its machine; empty if it did not say."""
    pid_namespace: Integer = 0
    """The namespace in which `pid` is a name; 0 if it did not say."""


@event("worker.stopped", stream=topics.WORKERS, owner=NOBODY)
class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker left by itself; without a code it drained cleanly."""

    worker: UUID
    role: str
    slot: Index
    code: str = ""
    reason: str = ""
    memory_peak_bytes: Bytes = 0
    """The most memory that its processes had at any heartbeat; 0 if it does not say."""


@event("worker.lost", stream=topics.WORKERS, owner=NOBODY)
class WorkerLost(Event, frozen=True, kw_only=True):
    """The supervisor saw the process end, or heard nothing of it for too long."""

    worker: UUID
    role: str
    slot: Index
    reason: str
    memory_bytes: Bytes = 0
    """The memory that its processes had at its last heartbeat; 0 if nobody knows."""


@event("worker.heartbeat", stream=topics.HEARTBEATS, owner=NOBODY)
class Heartbeat(Event, frozen=True, kw_only=True):
    """Liveness, credits and progress; never folded into truth."""

    worker: UUID
    role: str
    slot: Index
    state: str
    """Its work, or what it waits for: one of `WorkerState`, or of those that a newer release knows."""
    free: Count = 0
    """Rollouts that it could take now."""
    leases: tuple[UUID, ...] = ()
    """Leases under way that made progress since the last heartbeat."""
    version: Index = -1
    tokens_total: Count = 0
    rollouts_total: Count = 0
    memory_bytes: Bytes = 0
    """The memory that its processes have; 0 if it does not say."""
    cpu_s: Seconds = 0.0
    """The processor time that its processes have used; it falls when one of them ends."""
    spans_dropped_total: Count = 0
    """Spans of its traces that never arrived at their receiver."""
    sync_failures: tuple[tuple[str, Count], ...] = ()
    """Weight syncs that failed since it began, by reason: one of `SyncFailure`, or of a newer release."""


@event("record.dead_lettered", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordDeadLettered(Event, frozen=True, kw_only=True):
    """A record that a consumer could not use; a pointer, not a copy."""

    stream: str
    partition: Index
    offset: PointerOffset
    consumer: str
    code: str
    reason: str
    unreadable: bool = False
    """No reader of that release could decode it, so it had no effect; in a release that can, it has."""


@event("record.retried", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordRetried(Event, frozen=True, kw_only=True):
    """A record that was set aside takes effect after all, by another event; the record itself stays as it was.

    For the group.closed of a task that failed, the other event is its task.retried.
    """

    stream: str
    partition: Index
    offset: PointerOffset
    event: UUID
    """Id of the other event; it follows from what was set aside, so that a second retry changes nothing."""
    by: str = ""
    """The person who asked for it."""


@event("record.dropped", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordDropped(Event, frozen=True, kw_only=True):
    """Somebody looked at a record that was set aside, or at a task that failed, and wants to be told of it no more."""

    stream: str
    partition: Index
    offset: PointerOffset
    reason: str
    by: str = ""
    """The person."""
