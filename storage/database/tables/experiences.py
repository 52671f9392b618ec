"""Experiences, without their tokens: folded from `rftd.experiences`, `rftd.tasks` and the spine."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import (
    CLUSTERED,
    Id,
    Int,
    IntKey,
    Key,
    LogOffset,
    Real,
    Row,
    Text,
    TextKey,
    where,
)


class Experiences(Row, table=True):
    """One rollout as ended by one explorer: produced, failed, or both, with the lower offset counting.

    Its effect and state follow from rows of other tables: see `rftd.storage.queries.books`. The payload stays in the
    log at (`produced_partition`, `produced_offset`).
    """

    __tablename__ = "experiences"
    __table_args__ = (
        Index("experiences_id", "id"),
        Index("experiences_experiment", "experiment", "produced_ns"),
        Index("experiences_versions", "experiment", "oldest_version"),
        Index("experiences_reward", "experiment", "reward", "produced_ns"),
        Index(
            "experiences_staleness",
            "experiment",
            "staleness_versions",
            "produced_ns",
            **where("staleness_versions IS NOT NULL"),
        ),
        # Partial: most experiences end as planned, and are listed by time.
        Index("experiences_state", "experiment", "state", "produced_ns", **where("state <> 'planned'")),
        Index("experiences_failed", "failed_experiment", "failed_ns", **where("failed_offset IS NOT NULL")),
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
    state: Text
    """`open`, `waiting`, `cooling`, `planned`, `retired` or `late`; null for records without effect. This and all
    later columns are renewed by the projector from other tables: see `rftd.storage.projector.experience_states`.
    """
    retired_reason: Text
    retired_used: Int
    """1 if a retired experience was trained before, else 0."""
    step: Int
    """The last step planned with this experience."""
    staleness_versions: Int
    """The highest staleness of its plans."""
    uses: Int
    """The number of its plans."""


class Counts(Row, table=True):
    """The number of an experiment's experiences in each state, and of its closed groups; renewed with the rows."""

    __tablename__ = "counts"
    __table_args__ = CLUSTERED

    experiment: Key
    kind: TextKey
    """A state; `retired_used`: retired after a use; `groups`, their `members`, `failed` rollouts; `code` of a close."""
    reason: TextKey
    """The reason of a retirement, or the code of a close; else empty."""
    count: Int


class StageCounts(Row, table=True):
    """The number of a stage's rollouts of each kind, by reason and length, with their tokens; renewed with the rows."""

    __tablename__ = "stage_counts"
    __table_args__ = CLUSTERED

    experiment: Key
    stage: IntKey
    kind: TextKey
    """See `rftd.storage.queries.stage_counts`."""
    reason: TextKey
    length: IntKey
    """The length of the responses, rounded down to few values; 0 for kinds without lengths."""
    count: Int
    prompt_tokens: Int
    response_tokens: Int


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
