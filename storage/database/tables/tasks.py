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
    kind: Text
    experiment: Id
    stage: Int
    subject: Id
    """The id of the group or of the evaluation."""
    worker: Id
    slot: Int
    attempt: Int
    deadline_s: Real
    sequence: Int
    taskset: Int
    row_start: Int
    row_end: Int
    epoch: Int
    rollouts: Int
    """The number of rollouts to run under the lease."""
    version: Int
    """The lowest (task) or the only (eval) weight version that may answer."""
    leased_ns: Int
    leased_partition: Int
    leased_offset: LogOffset
    expired_ns: Int
    expired_reason: Text
    expired_partition: Int
    expired_offset: LogOffset


class Groups(Row, table=True):
    """A closed group of rollouts: members, failed rollouts, mean reward, and the reason of a failure."""

    __tablename__ = "groups"
    __table_args__ = (
        Index("groups_experiment", "experiment", "stage", "sequence"),
        Index("groups_empty", "experiment", "closed_ns", **where("members = 0")),
        CLUSTERED,
    )

    id: Key
    experiment: Id
    stage: Int
    sequence: Int
    members: Int
    member_map: Text
    """A digit for each rollout, 1 if its experience is a member."""
    failed: Int
    reward_mean: Real
    code: Text
    reason: Text
    closed_ns: Int
    closed_partition: Int
    closed_offset: LogOffset
    tag: Real
    """The priority of the group's experiences, if changed by a command."""
    tagged_partition: Int
    tagged_offset: LogOffset
