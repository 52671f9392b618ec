"""Leases and groups: folded from `rftd.tasks`."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import CLUSTERED, Id, Int, Key, LogOffset, Real, Row, Text, where


class Leases(Row, table=True):
    """One lease of a group of rollouts (`task`) or of a range of held-out rows (`eval`)."""

    __tablename__ = "leases"
    __table_args__ = (
        Index("leases_subject", "subject"),
        Index("leases_worker", "worker", "leased_ns"),
        Index("leases_row", "experiment", "row_start"),
        CLUSTERED,
    )

    id: Key
    """Id of the lease."""
    kind: Text
    """`task` for a group of rollouts, `eval` for a range of held-out rows."""
    experiment: Id
    """Id of the experiment."""
    stage: Int
    """Number of the stage."""
    subject: Id
    """The id of the group or of the evaluation."""
    worker: Id
    """Id of the worker holding the lease."""
    slot: Int
    """The worker's partition of `rftd.tasks`."""
    attempt: Int
    """Number of the attempt."""
    deadline_s: Real
    """Seconds without progress until the lease expires."""
    sequence: Int
    """Number of the group in its stage, from 0; null for an evaluation."""
    taskset: Int
    """Index of the held-out taskset in the stage's `evals`; null for a task."""
    row_start: Int
    """The first row of the lease."""
    row_end: Int
    """The row after the last row of the lease."""
    epoch: Int
    """Epoch of the row; null for an evaluation."""
    rollouts: Int
    """The number of rollouts to run under the lease."""
    version: Int
    """The lowest (task) or the only (eval) weight version that may answer."""
    leased_ns: Int
    """Time of the lease, Unix time in nanoseconds."""
    leased_partition: Int
    """Partition of the log with the record of the lease."""
    leased_offset: LogOffset
    """Offset of the record of the lease in the partition."""
    expired_ns: Int
    """Time of the expiry, Unix time in nanoseconds."""
    expired_reason: Text
    """Reason of the expiry, in words."""
    expired_partition: Int
    """Partition of the log with the record of the expiry."""
    expired_offset: LogOffset
    """Offset of the record of the expiry in the partition."""


class Groups(Row, table=True):
    """A closed group of rollouts: members, failed rollouts, mean reward, and the reason of a failure."""

    __tablename__ = "groups"
    __table_args__ = (
        Index("groups_experiment", "experiment", "stage", "sequence"),
        Index("groups_empty", "experiment", "closed_ns", **where("members = 0")),
        CLUSTERED,
    )

    id: Key
    """Id of the group."""
    experiment: Id
    """Id of the experiment."""
    stage: Int
    """Number of the stage."""
    sequence: Int
    """Number of the group in its stage, from 0."""
    members: Int
    """Number of experiences in the group, each a success."""
    member_map: Text
    """A digit for each rollout, 1 if its experience is a member."""
    failed: Int
    """Number of failed rollouts."""
    reward_mean: Real
    """Mean reward of the members; null without members."""
    code: Text
    """Error code of the last failure; empty without one."""
    reason: Text
    """Reason of the last failure, in words."""
    closed_ns: Int
    """Time of the close, Unix time in nanoseconds."""
    closed_partition: Int
    """Partition of the log with the record of the close."""
    closed_offset: LogOffset
    """Offset of the record of the close in the partition."""
    tag: Real
    """The priority of the group's experiences, if changed by a command."""
    tagged_partition: Int
    """Partition of the log with the record of the last change of the priority tag."""
    tagged_offset: LogOffset
    """Offset of the record of the last change of the priority tag in the partition."""
