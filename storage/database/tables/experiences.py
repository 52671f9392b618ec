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
    """Id of the group."""
    rollout: IntKey
    """Number of the rollout in its group, from 0."""
    writer: Key
    """The explorer that wrote the record; records of other writers are in no table."""
    id: Id
    """Id of the experience; null for a rollout only failed."""
    experiment: Id
    """Id of the experiment; null for a rollout only failed."""
    stage: Int
    """Number of the stage; null for a rollout only failed."""
    lease: Id
    """The lease answered by the experience."""
    prompt_tokens: Int
    """Length of the prompt, in tokens; with several steps, the sum over all steps."""
    response_tokens: Int
    """Length of the response, in tokens."""
    oldest_version: Int
    """The oldest weight version behind a token of the response."""
    newest_version: Int
    """The newest weight version behind a token of the response."""
    reward: Real
    """Reward of the rollout."""
    priority: Real
    """Priority of the experience as produced."""
    metrics: Text
    """Metrics of the rollout by name, as JSON; null without metrics."""
    finish: Text
    """End of the response: `stop`, `length` or `prompt_truncated`."""
    duration_s: Real
    """Seconds of the rollout."""
    produced_ns: Int
    """Time of the success, Unix time in nanoseconds."""
    produced_partition: Int
    """Partition of the log with the record of the success."""
    produced_offset: LogOffset
    """Offset of the record of the success in the partition."""
    failed_lease: Id
    """The lease answered by the failure."""
    failed_experiment: Id
    """Id of the experiment, from the record of the failure."""
    failed_stage: Int
    """Number of the stage, from the record of the failure."""
    failed_code: Text
    """Code of the error."""
    failed_reason: Text
    """Reason of the failure, in words."""
    failed_ns: Int
    """Time of the failure, Unix time in nanoseconds."""
    failed_partition: Int
    """Partition of the log with the record of the failure."""
    failed_offset: LogOffset
    """Offset of the record of the failure in the partition."""
    spans: Text
    """JSON: [version, generation, start, end] for each run of response tokens sampled by one version."""
    state: Text
    """`open`, `waiting`, `cooling`, `planned`, `retired` or `late`; null for records without effect. This and all
    later columns are renewed by the projector from other tables: see `rftd.storage.projector.experience_states`.
    """
    retired_reason: Text
    """Reason of the retirement; null or empty unless retired."""
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
    """Id of the experiment."""
    kind: TextKey
    """A state; `retired_used`: retired after a use; `groups`, their `members`, `failed` rollouts; `code` of a close."""
    reason: TextKey
    """The reason of a retirement, or the code of a close; else empty."""
    count: Int
    """Number of experiences, groups, rollouts or tasks of the kind and reason."""


class StageCounts(Row, table=True):
    """The number of a stage's rollouts of each kind, by reason and length, with their tokens; renewed with the rows."""

    __tablename__ = "stage_counts"
    __table_args__ = CLUSTERED

    experiment: Key
    """Id of the experiment."""
    stage: IntKey
    """Number of the stage."""
    kind: TextKey
    """Kind of the rollouts or groups, one of the constants of `rftd.storage.queries.stage_counts`."""
    reason: TextKey
    """Reason of a retirement, or code of a failure or close; else empty."""
    length: IntKey
    """The length of the responses, rounded down to few values; 0 for kinds without lengths."""
    count: Int
    """Number of rollouts or groups."""
    prompt_tokens: Int
    """Sum of the prompts' lengths, in tokens; 0 for kinds without experiences."""
    response_tokens: Int
    """Sum of the responses' lengths, in tokens; 0 for kinds without experiences."""


class Retirements(Row, table=True):
    """An experience retired from training, with the reason and the number of uses before."""

    __tablename__ = "retirements"
    __table_args__ = CLUSTERED

    experience: Key
    """Id of the experience."""
    experiment: Id
    """Id of the experiment."""
    reason: Text
    """Reason of the retirement."""
    uses: Int
    """Number of uses before the retirement."""
    decided_at_ns: Int
    """Time of the planner's decision, Unix time in nanoseconds."""
    retired_partition: Int
    """Partition of the log with the record of the retirement."""
    retired_offset: LogOffset
    """Offset of the record of the retirement in the partition."""
