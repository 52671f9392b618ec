"""Experiences, without their tokens: folded from `rftd.experiences`, `rftd.tasks` and the spine."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import CLUSTERED, Id, Int, IntKey, Key, LogOffset, Real, Row, Text


class Experiences(Row, table=True):
    """One rollout as ended by one explorer: produced, failed, or both, with the lower offset counting.

    Whether the row counts at all follows from the lease answered by the explorer: see `rftd.storage.queries.books`. The
    payload stays in the log at (`produced_partition`, `produced_offset`).
    """

    __tablename__ = "experiences"
    __table_args__ = (
        Index("experiences_id", "id"),
        Index("experiences_experiment", "experiment", "produced_ns"),
        Index("experiences_versions", "experiment", "oldest_version"),
        # Not clustered: appending such wide rows is a third cheaper than inserting them among others, at 300,000 rows.
    )

    group_id: Key
    rollout: IntKey
    writer: Key
    """The explorer that wrote the record; records of other writers are in no table."""
    id: Id
    experiment: Id
    stage: Int
    lease: Id
    """The lease answered by the experience."""
    prompt_tokens: Int
    response_tokens: Int
    oldest_version: Int
    newest_version: Int
    reward: Real
    priority: Real
    metrics: Text
    """JSON."""
    finish: Text
    duration_s: Real
    produced_ns: Int
    produced_partition: Int
    produced_offset: LogOffset
    failed_lease: Id
    """The lease answered by the failure."""
    failed_experiment: Id
    failed_stage: Int
    failed_code: Text
    failed_reason: Text
    failed_ns: Int
    failed_partition: Int
    failed_offset: LogOffset
    spans: Text
    """JSON: [version, generation, start, end] for each run of response tokens sampled by one version."""


class Retirements(Row, table=True):
    """An experience retired from training, with the reason and the number of uses before."""

    __tablename__ = "retirements"
    __table_args__ = CLUSTERED

    experience: Key
    experiment: Id
    reason: Text
    uses: Int
    decided_at_ns: Int
    retired_partition: Int
    retired_offset: LogOffset
