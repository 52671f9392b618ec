"""Workers: that they live, and what they are doing."""

from __future__ import annotations

from uuid import UUID

from rftd.streams import topics
from rftd.streams.events.registry import Event, event


@event("worker.started", stream=topics.WORKERS)
class WorkerStarted(Event, frozen=True, kw_only=True):
    """A worker process joined. Written by itself; its experiment is the envelope's."""

    worker: UUID
    role: str
    """`explorer` or `trainer`."""
    slot: int
    """The partition of `rftd.tasks` that it reads; -1 for a trainer."""
    host: str
    pid: int
    process_start_s: float
    """The operating system's start time of the process: (host, pid, this) names it for ever."""
    capacity: int = 0
    """Rollouts that it runs at once."""


@event("worker.stopped", stream=topics.WORKERS)
class WorkerStopped(Event, frozen=True, kw_only=True):
    """A worker left by itself; without a code it drained cleanly."""

    worker: UUID
    role: str
    slot: int
    code: str = ""
    reason: str = ""


@event("worker.lost", stream=topics.WORKERS)
class WorkerLost(Event, frozen=True, kw_only=True):
    """The supervisor saw the process end, or heard nothing of it for too long."""

    worker: UUID
    role: str
    slot: int
    reason: str


@event("worker.heartbeat", stream=topics.HEARTBEATS)
class Heartbeat(Event, frozen=True, kw_only=True):
    """Liveness, credits and progress; never folded into truth."""

    worker: UUID
    role: str
    slot: int
    state: str
    """What it is doing or waiting for: `busy`, `wait_tasks`, `wait_weights`, `wait_batch`, `load`, ..."""
    free: int = 0
    """Rollouts that it could take now."""
    leases: tuple[UUID, ...] = ()
    """Leases under way that made progress since the last heartbeat."""
    version: int = -1
    tokens_total: int = 0
    rollouts_total: int = 0


@event("record.dead_lettered", stream=topics.DEADLETTERS)
class RecordDeadLettered(Event, frozen=True, kw_only=True):
    """A record that a consumer could not use; a pointer, not a copy."""

    stream: str
    partition: int
    offset: int
    consumer: str
    code: str
    reason: str
    unreadable: bool = False
    """No reader of that release could decode it, so it had no effect; in a release that can, it has."""


@event("record.retried", stream=topics.DEADLETTERS)
class RecordRetried(Event, frozen=True, kw_only=True):
    """What was set aside takes effect after all, by another event; the record itself stays as it was.

    Of the group.closed of a task that failed that is its task.retried.
    """

    stream: str
    partition: int
    offset: int
    event: UUID
    """Id of the other event; it follows from what was set aside, so that a second retry changes nothing."""
    by: str = ""
    """Who asked for it."""


@event("record.dropped", stream=topics.DEADLETTERS)
class RecordDropped(Event, frozen=True, kw_only=True):
    """Somebody looked at a record that was set aside, or at a task that failed, and wants to be told of it no more."""

    stream: str
    partition: int
    offset: int
    reason: str
    by: str = ""
    """Who it was."""
