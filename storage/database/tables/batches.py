"""Batches and their items: folded from the spine."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import CLUSTERED, Flag, Id, Int, IntKey, Key, LogOffset, Real, Row, Text


class Batches(Row, table=True):
    """One planned batch; `abandoned_offset` is set if the batch was abandoned, executed or not."""

    __tablename__ = "batches"
    __table_args__ = (Index("batches_experiment", "experiment", "step"), CLUSTERED)

    id: Key
    """Id of the batch."""
    experiment: Id
    """Id of the experiment."""
    step: Int
    """Weight version produced by training the batch, counted over the whole experiment."""
    stage: Int
    """Number of the stage."""
    items: Int
    """Number of experiences and dataset rows."""
    groups: Int
    """Number of groups with an experience in the batch."""
    incomplete: Flag
    """True if `max_read_timeout` passed before the batch was full."""
    staleness_mean: Real
    """Mean staleness of the batch's experiences, in versions, as are the 95th percentile and the maximum below."""
    staleness_p95: Int
    """95th percentile of the experiences' staleness, in versions."""
    staleness_max: Int
    """Maximum staleness of the experiences, in versions."""
    decided_at_ns: Int
    """Time of the planner's decision, Unix time in nanoseconds."""
    planned_partition: Int
    """Partition of the log with the record of the plan."""
    planned_offset: LogOffset
    """Offset of the record of the plan in the partition."""
    abandoned_ns: Int
    """Time of the abandonment, Unix time in nanoseconds."""
    abandoned_code: Text
    """Code of the abandonment."""
    abandoned_reason: Text
    """Reason of the abandonment, in words."""
    abandoned_partition: Int
    """Partition of the log with the record of the abandonment."""
    abandoned_offset: LogOffset
    """Offset of the record of the abandonment in the partition."""
    max_uses: Int
    """Number of uses below which an experience cools down and may be planned again; 0: unlimited."""
    eligible_at_ns: Int
    """Clock reading from which experiences may be used again, Unix time in nanoseconds."""


class BatchItems(Row, table=True):
    """One item of a batch: an experience, or a dataset row."""

    __tablename__ = "batch_items"
    __table_args__ = (Index("batch_items_experience", "experience"), CLUSTERED)

    batch: Key
    """Id of the batch."""
    item: IntKey
    """Index in the batch, from 0: experiences first, then dataset rows."""
    experience: Id
    """Id of the experience; null for a dataset row."""
    group_id: Id
    """Id of the experience's group; null for a dataset row."""
    partition: Int
    """Partition of `rftd.experiences` with the experience's record."""
    offset: LogOffset
    """Offset of the experience's record in the partition."""
    staleness_versions: Int
    """Staleness of the experience when planned, in versions."""
    use: Int
    """Number of the experience's use, from 1."""
    digest: Text
    """SHA-256 of the dataset; null for an experience."""
    row: Int
    """Row of the dataset; null for an experience."""
    epoch: Int
    """Epoch of the dataset row; null for an experience."""
    planned_partition: Int
    """Partition of the log with the record of the plan."""
    planned_offset: LogOffset
    """Offset of the record of the plan in the partition."""
