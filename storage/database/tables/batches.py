"""Batches and their items: folded from the spine."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import CLUSTERED, Flag, Id, Int, IntKey, Key, LogOffset, Real, Row, Text


class Batches(Row, table=True):
    """One planned batch; `abandoned_offset` is set if the batch was abandoned, executed or not."""

    __tablename__ = "batches"
    __table_args__ = (Index("batches_experiment", "experiment", "step"), CLUSTERED)

    id: Key
    experiment: Id
    step: Int
    stage: Int
    items: Int
    groups: Int
    incomplete: Flag
    staleness_mean: Real
    """Mean staleness of the batch's experiences, in versions, as are the 95th percentile and the maximum below."""
    staleness_p95: Int
    staleness_max: Int
    decided_at_ns: Int
    planned_partition: Int
    planned_offset: LogOffset
    abandoned_ns: Int
    abandoned_code: Text
    abandoned_reason: Text
    abandoned_partition: Int
    abandoned_offset: LogOffset
    max_uses: Int
    """Number of uses below which an experience cools down and may be planned again; 0: unlimited."""
    eligible_at_ns: Int


class BatchItems(Row, table=True):
    """One item of a batch: an experience, or a dataset row."""

    __tablename__ = "batch_items"
    __table_args__ = (Index("batch_items_experience", "experience"), CLUSTERED)

    batch: Key
    item: IntKey
    experience: Id
    group_id: Id
    partition: Int
    offset: LogOffset
    staleness_versions: Int
    use: Int
    digest: Text
    row: Int
    epoch: Int
    planned_partition: Int
    planned_offset: LogOffset
