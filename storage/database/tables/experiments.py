"""Experiments, their stages, warnings and transitions: folded from the spine."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import (
    Flag,
    Id,
    Int,
    IntKey,
    Key,
    LocalPath,
    LogOffset,
    LogOffsetKey,
    Real,
    Row,
    Text,
    TextKey,
)


class Experiments(Row, table=True):
    """One experiment. `state` follows the spine's order; the other columns are as submitted."""

    __tablename__ = "experiments"
    __table_args__ = (Index("experiments_name", "name"), Index("experiments_parent", "parent"))

    id: Key
    """Id of the experiment."""
    project: Text
    """Name of the project."""
    group_name: Text
    """Name of the group of experiments."""
    name: Text
    """Name of the experiment, shared by experiments submitted again."""
    job_dir: LocalPath
    """Path of the experiment's folder."""
    stages: Int
    """Number of stages."""
    total_steps: Int
    """Number of steps of all stages together."""
    deterministic: Flag
    """True for deterministic mode."""
    seed: Int
    """Seed of the experiment."""
    config: Text
    """The submitted specification, as JSON."""
    labels: Text
    """Labels of the submission by key, as JSON."""
    submitted_ns: Int
    """Time of the submission, Unix time in nanoseconds."""
    submitted_partition: Int
    """Partition of the log with the record of the submission."""
    submitted_offset: LogOffset
    """Offset of the record of the submission in the partition."""
    state: Text
    """State after the last transition; null before the first one."""
    state_ns: Int
    """Time of the last transition, Unix time in nanoseconds."""
    state_code: Text
    """Code of the last transition."""
    state_reason: Text
    """Reason of the last transition, in words."""
    state_role: Text
    """Role named by a failure; else empty."""
    state_partition: Int
    """Partition of the log with the record of the last transition."""
    state_offset: LogOffset
    """Offset of the record of the last transition in the partition."""
    started_ns: Int
    """Time of the start, Unix time in nanoseconds."""
    started_partition: Int
    """Partition of the log with the record of the start."""
    started_offset: LogOffset
    """Offset of the record of the start in the partition."""
    parent: Id
    """The experiment that shares its history up to `forked_step` with this fork."""
    forked_step: Int
    """The last weight version shared with the parent."""
    forked_ns: Int
    """Time of the fork, Unix time in nanoseconds."""
    forked_partition: Int
    """Partition of the log with the record of the fork."""
    forked_offset: LogOffset
    """Offset of the record of the fork in the partition."""
    kept: Text
    """Location of the experiment's files: `here` (or null), `archived`, `removed`."""
    kept_path: LocalPath
    """Path of the archive with the files, or of the archive restored; else empty."""
    kept_reason: Text
    """Reason of the removal, in words."""
    kept_ns: Int
    """Time of the last archiving, restoring or removal, Unix time in nanoseconds."""
    kept_partition: Int
    """Partition of the log with the record of the last archiving, restoring or removal."""
    kept_offset: LogOffset
    """Offset of the record of the last archiving, restoring or removal in the partition."""
    priority: Int
    """The priority at submission."""
    prioritized: Int
    """The priority set later; null if it was never changed."""
    prioritized_ns: Int
    """Time of the last change of priority, Unix time in nanoseconds."""
    prioritized_partition: Int
    """Partition of the log with the record of the last change of priority."""
    prioritized_offset: LogOffset
    """Offset of the record of the last change of priority in the partition."""
    signal_cause: Text
    """Name of the cause for which nothing is learnt; null or empty while there is a learning signal."""
    signal_reason: Text
    """The cause in words, with a fix."""
    signal_step: Int
    """First step of a lost signal, or of a regained one."""
    signal_ns: Int
    """Time of the last loss or return of the learning signal, Unix time in nanoseconds."""
    signal_partition: Int
    """Partition of the log with the record of the last loss or return of the learning signal."""
    signal_offset: LogOffset
    """Offset of the record of the last loss or return of the learning signal in the partition."""


class RunNotes(Row, table=True):
    """A note on an experiment or on one of its rollouts; `number` is the offset."""

    __tablename__ = "notes"

    experiment: Key
    """Id of the experiment."""
    number: LogOffsetKey
    """Offset of the note's record, the number of the note."""
    experience: Id
    """The rollout; null for the experiment."""
    text: Text
    """Text of the note."""
    author: Text
    """Name of the author's token; null for the owner."""
    noted_ns: Int
    """Time of the note, Unix time in nanoseconds."""
    noted_partition: Int
    """Partition of the log with the record of the note."""
    noted_offset: LogOffset
    """Offset of the record of the note in the partition."""


class Annotations(Row, table=True):
    """Star and labels of an experiment or of a rollout, as of the last commands."""

    __tablename__ = "annotations"

    experiment: Key
    """Id of the experiment."""
    experience: Key
    """The rollout; for the experiment its own id."""
    starred: Flag
    """True for a starred experiment or rollout; null if never changed."""
    starred_ns: Int
    """Time of the last change of the star, Unix time in nanoseconds."""
    starred_partition: Int
    """Partition of the log with the record of the last change of the star."""
    starred_offset: LogOffset
    """Offset of the record of the last change of the star in the partition."""
    labels: Text
    """JSON; null if the labels of the submission hold."""
    labelled_ns: Int
    """Time of the last change of the labels, Unix time in nanoseconds."""
    labelled_partition: Int
    """Partition of the log with the record of the last change of the labels."""
    labelled_offset: LogOffset
    """Offset of the record of the last change of the labels in the partition."""


class Stages(Row, table=True):
    """A stage of an experiment: settings from the submission, progress and best checkpoint from later events."""

    __tablename__ = "stages"

    experiment: Key
    """Id of the experiment."""
    stage: IntKey
    """Number of the stage."""
    name: Text
    """Name of the stage."""
    kind: Text
    """`train` (from a dataset), `both`, or `explore` (collects experiences)."""
    algorithm: Text
    """Name of the stage's algorithm."""
    total_steps: Int
    """Number of steps of the stage."""
    batch_size: Int
    """Number of tasks of one explore step."""
    train_batch_size: Int
    """Number of items of one training step."""
    submitted_partition: Int
    """Partition of the log with the record of the submission."""
    submitted_offset: LogOffset
    """Offset of the record of the submission in the partition."""
    first_version: Int
    """Weight version at the start of the stage."""
    started_ns: Int
    """Time of the start of the stage, Unix time in nanoseconds."""
    started_partition: Int
    """Partition of the log with the record of the start of the stage."""
    started_offset: LogOffset
    """Offset of the record of the start of the stage in the partition."""
    last_version: Int
    """Weight version at the end of the stage."""
    completed_ns: Int
    """Time of the end of the stage, Unix time in nanoseconds."""
    completed_partition: Int
    """Partition of the log with the record of the end of the stage."""
    completed_offset: LogOffset
    """Offset of the record of the end of the stage in the partition."""
    best_version: Int
    """The version of the best checkpoint by evaluation; null without such a selection, or before the first one."""
    best_figure: Text
    """Name of the figure compared between evaluations."""
    best_value: Real
    """The figure for the best version."""
    best_base: Real
    """The same figure for the initial weights of the stage."""
    best_kept: Text
    """JSON: the versions whose checkpoints are kept for their evaluation."""
    best_ns: Int
    """Time of the last selection of the best checkpoint, Unix time in nanoseconds."""
    best_partition: Int
    """Partition of the log with the record of the last selection of the best checkpoint."""
    best_offset: LogOffset
    """Offset of the record of the last selection of the best checkpoint in the partition."""
    stopped_by: Int
    """The version whose evaluation ended the stage before its last step; null if none did."""
    stopped_reason: Text
    """Reason of the early end, in words."""
    stopped_ns: Int
    """Time of the early end, Unix time in nanoseconds."""
    stopped_partition: Int
    """Partition of the log with the record of the early end."""
    stopped_offset: LogOffset
    """Offset of the record of the early end in the partition."""


class Warnings(Row, table=True):
    """A warning about a changed or ignored setting: of the submission (`number` from 0) or later (`number` is the
    offset).
    """

    __tablename__ = "warnings"

    experiment: Key
    """Id of the experiment."""
    origin: TextKey
    """`submitted` or `warned`."""
    number: LogOffsetKey
    """Index in the submission, from 0, or offset of a later record."""
    text: Text
    """Text of the warning."""
    warned_ns: Int
    """Time of the warning, Unix time in nanoseconds."""
    warned_partition: Int
    """Partition of the log with the record of the warning."""
    warned_offset: LogOffset
    """Offset of the record of the warning in the partition."""


class Transitions(Row, table=True):
    """A change of an experiment's state or learning signal; `number` is the offset."""

    __tablename__ = "transitions"

    experiment: Key
    """Id of the experiment."""
    number: LogOffsetKey
    """Offset of the change's record, the number of the change."""
    change: Text
    """The new state, `signal_lost` or `signal_regained`."""
    code: Text
    """Code of the change, if any."""
    reason: Text
    """Reason of the change, in words."""
    step: Int
    """The first step of a lost signal, or of a regained one; null for a change of state."""
    moved_ns: Int
    """Time of the change, Unix time in nanoseconds."""
    moved_partition: Int
    """Partition of the log with the record of the change."""
    moved_offset: LogOffset
    """Offset of the record of the change in the partition."""
