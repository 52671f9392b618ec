"""Workers that joined and left: folded from `rftd.workers`. Heartbeats are not folded."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import Id, Int, Key, LogOffset, Real, Row, Text


class Workers(Row, table=True):
    """One worker process, from its start to its stop or loss."""

    __tablename__ = "workers"
    __table_args__ = (Index("workers_experiment", "experiment"),)

    id: Key
    experiment: Id
    role: Text
    slot: Int
    host: Text
    pid: Int
    process_start_s: Real
    capacity: Int
    started_ns: Int
    started_partition: Int
    started_offset: LogOffset
    stopped_ns: Int
    stopped_code: Text
    stopped_reason: Text
    stopped_memory_bytes: Int
    stopped_partition: Int
    stopped_offset: LogOffset
    lost_ns: Int
    lost_reason: Text
    lost_memory_bytes: Int
    lost_partition: Int
    lost_offset: LogOffset
