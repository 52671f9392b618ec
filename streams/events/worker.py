"""Workers: their life and their activity."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.registry import NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Count, Finite, Index, Integer, Seconds
from rftd.streams.log.marked import PointerOffset


@event("worker.started", stream=topics.WORKERS, owner=NOBODY)
class WorkerStarted(Event, frozen=True, kw_only=True):
    """The start of a worker process, written by the worker; its experiment is the envelope's."""

    worker: UUID
    role: str
    """`explorer` or `trainer`."""
    slot: Index
    """The worker's partition of `rftd.tasks`; -1 for a trainer."""
    host: str
    pid: Index
    process_start_s: Finite
    """The operating system's start time of the process: (host, pid, start time) identifies it for ever."""
    capacity: Count = 0
    """Maximum number of concurrent rollouts."""
    boot_id: str = ""
    """The id of the present boot of its machine; empty if not reported."""
    pid_namespace: Integer = 0
    """The namespace of `pid`; 0 if not reported."""


@event("worker.stopped", stream=topics.WORKERS, owner=NOBODY)
class WorkerStopped(Event, frozen=True, kw_only=True):
    """The regular end of a worker; without a code it drained cleanly."""

    worker: UUID
    role: str
    slot: Index
    code: str = ""
    reason: str = ""
    memory_peak_bytes: Bytes = 0
    """Maximum memory of its processes at any heartbeat, in bytes; 0 if not reported."""


@event("worker.lost", stream=topics.WORKERS, owner=NOBODY)
class WorkerLost(Event, frozen=True, kw_only=True):
    """The end of a worker process as noticed by the supervisor, or a silence of the worker beyond the limit."""

    worker: UUID
    role: str
    slot: Index
    reason: str
    memory_bytes: Bytes = 0
    """Memory of its processes at its last heartbeat, in bytes; 0 if unknown."""


@event("worker.heartbeat", stream=topics.HEARTBEATS, owner=NOBODY)
class Heartbeat(Event, frozen=True, kw_only=True):
    """Liveness, credits and progress of a worker; never folded into truth."""

    worker: UUID
    role: str
    slot: Index
    state: str
    """The worker's work, or the reason of its wait: one of `WorkerState`, or a state of a newer release."""
    free: Count = 0
    """Number of further rollouts it could take now."""
    leases: tuple[UUID, ...] = ()
    """Unfinished leases with progress since the last heartbeat."""
    version: Index = -1
    tokens_total: Count = 0
    rollouts_total: Count = 0
    memory_bytes: Bytes = 0
    """Memory of its processes in bytes; 0 if not reported."""
    cpu_s: Seconds = 0.0
    """Processor time used by its processes in seconds; decreases when one of them ends."""
    spans_dropped_total: Count = 0
    """Number of its trace spans lost before their receiver."""
    sync_failures: tuple[tuple[str, Count], ...] = ()
    """Number of failed weight syncs since the worker's start, by reason: one of `SyncFailure`, or of a newer release.
    """


@event("record.dead_lettered", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordDeadLettered(Event, frozen=True, kw_only=True):
    """A record unusable for a consumer; a pointer, not a copy."""

    stream: str
    partition: Index
    offset: PointerOffset
    consumer: str
    code: str
    reason: str
    unreadable: bool = False
    """True if no reader of the release could decode the record, leaving it without effect; readers of a later release
    may.
    """


@event("record.retried", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordRetried(Event, frozen=True, kw_only=True):
    """The effect of a dead letter after all, by another event; the record itself stays unchanged.

    For the group.closed of a failed task, the other event is its task.retried.
    """

    stream: str
    partition: Index
    offset: PointerOffset
    event: UUID
    """Id of the other event; derived from the dead letter, so that a second retry changes nothing."""
    by: str = ""
    """The requesting person."""


@event("record.dropped", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordDropped(Event, frozen=True, kw_only=True):
    """A person's decision to ignore a dead letter, or a failed task, from now on."""

    stream: str
    partition: Index
    offset: PointerOffset
    reason: str
    by: str = ""
    """The deciding person."""
