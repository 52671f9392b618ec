"""Workers that joined and left: folded from `rftd.workers`. Heartbeats are not folded."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import Id, Int, Key, LogOffset, Real, Row, Text


class Workers(Row, table=True):
    """One worker process, from its start to its stop or loss."""

    __tablename__ = "workers"
    __table_args__ = (Index("workers_experiment", "experiment"),)

    id: Key
    """Id of the worker process."""
    experiment: Id
    """Id of the experiment."""
    role: Text
    """Role of the worker: `explorer` or `trainer`."""
    slot: Int
    """The worker's partition of `rftd.tasks`; -1 for a trainer."""
    host: Text
    """Name of the worker's machine."""
    pid: Int
    """Process id on the worker's machine."""
    process_start_s: Real
    """The operating system's start time of the process, in seconds."""
    capacity: Int
    """Maximum number of concurrent rollouts."""
    started_ns: Int
    """Time of the start, Unix time in nanoseconds."""
    started_partition: Int
    """Partition of the log with the record of the start."""
    started_offset: LogOffset
    """Offset of the record of the start in the partition."""
    stopped_ns: Int
    """Time of the stop, Unix time in nanoseconds."""
    stopped_code: Text
    """Error code of the stop; empty after a clean stop."""
    stopped_reason: Text
    """Reason of the stop, in words."""
    stopped_memory_bytes: Int
    """Memory of the processes as reported with the stop, in bytes."""
    stopped_partition: Int
    """Partition of the log with the record of the stop."""
    stopped_offset: LogOffset
    """Offset of the record of the stop in the partition."""
    lost_ns: Int
    """Time of the loss, Unix time in nanoseconds."""
    lost_reason: Text
    """Reason of the loss, in words."""
    lost_memory_bytes: Int
    """Memory of the processes at the last heartbeat, in bytes."""
    lost_partition: Int
    """Partition of the log with the record of the loss."""
    lost_offset: LogOffset
    """Offset of the record of the loss in the partition."""
