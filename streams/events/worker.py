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
    """Id of the worker."""
    role: str
    """`explorer` or `trainer`."""
    slot: Index
    """The worker's partition of `rftd.tasks`; -1 for a trainer."""
    host: str
    """Name of the machine."""
    pid: Index
    """Id of the process."""
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
    """Id of the worker."""
    role: str
    """Role of the worker."""
    slot: Index
    """Slot of the worker."""
    code: str = ""
    """Code of the error that ended the worker; empty after a clean end."""
    reason: str = ""
    """Text of the error that ended the worker; empty after a clean end."""
    memory_peak_bytes: Bytes = 0
    """Maximum memory of its processes at any heartbeat, in bytes; 0 if not reported."""


@event("worker.lost", stream=topics.WORKERS, owner=NOBODY)
class WorkerLost(Event, frozen=True, kw_only=True):
    """The end of a worker process as noticed by the supervisor, or a silence of the worker beyond the limit."""

    worker: UUID
    """Id of the worker."""
    role: str
    """Role of the worker."""
    slot: Index
    """Slot of the worker."""
    reason: str
    """Reason for the loss of the worker."""
    memory_bytes: Bytes = 0
    """Memory of its processes at its last heartbeat, in bytes; 0 if unknown."""


@event("worker.heartbeat", stream=topics.HEARTBEATS, owner=NOBODY)
class Heartbeat(Event, frozen=True, kw_only=True):
    """Liveness, credits and progress of a worker; never folded into truth."""

    worker: UUID
    """Id of the worker."""
    role: str
    """Role of the worker."""
    slot: Index
    """Slot of the worker."""
    state: str
    """The worker's work, or the reason of its wait: one of `WorkerState`, or a state of a newer release."""
    free: Count = 0
    """Number of further rollouts it could take now."""
    leases: tuple[UUID, ...] = ()
    """Unfinished leases with progress since the last heartbeat."""
    version: Index = -1
    """Weight version in use; -1 before the first."""
    tokens_total: Count = 0
    """Tokens sampled since the worker's start."""
    rollouts_total: Count = 0
    """Rollouts ended since the worker's start."""
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
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    offset: PointerOffset
    """Offset of the record in the partition."""
    consumer: str
    """Name of the reader that could not use the record."""
    code: str
    """Code of the error because of which the consumer could not use the record."""
    reason: str
    """Text of the error because of which the consumer could not use the record."""
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
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    offset: PointerOffset
    """Offset of the record in the partition."""
    event: UUID
    """Id of the other event; derived from the dead letter, so that a second retry changes nothing."""
    by: str = ""
    """The requesting person."""


@event("record.dropped", stream=topics.DEADLETTERS, owner=NOBODY)
class RecordDropped(Event, frozen=True, kw_only=True):
    """A person's decision to ignore a dead letter, or a failed task, from now on."""

    stream: str
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    offset: PointerOffset
    """Offset of the record in the partition."""
    reason: str
    """Reason for ignoring the dead letter or the failed task, as given by the person."""
    by: str = ""
    """The deciding person."""
