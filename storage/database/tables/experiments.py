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
    project: Text
    group_name: Text
    name: Text
    job_dir: LocalPath
    stages: Int
    total_steps: Int
    deterministic: Flag
    seed: Int
    config: Text
    """JSON."""
    labels: Text
    """JSON."""
    submitted_ns: Int
    submitted_partition: Int
    submitted_offset: LogOffset
    state: Text
    state_ns: Int
    state_code: Text
    state_reason: Text
    state_role: Text
    state_partition: Int
    state_offset: LogOffset
    started_ns: Int
    started_partition: Int
    started_offset: LogOffset
    parent: Id
    """The experiment that shares its history up to `forked_step` with this fork."""
    forked_step: Int
    forked_ns: Int
    forked_partition: Int
    forked_offset: LogOffset
    kept: Text
    """Location of the experiment's files: `here` (or null), `archived`, `removed`."""
    kept_path: LocalPath
    kept_reason: Text
    kept_ns: Int
    kept_partition: Int
    kept_offset: LogOffset
    priority: Int
    """The priority at submission."""
    prioritized: Int
    """The priority set later; null if it was never changed."""
    prioritized_ns: Int
    prioritized_partition: Int
    prioritized_offset: LogOffset
    signal_cause: Text
    """Name of the cause for which nothing is learnt; null or empty while there is a learning signal."""
    signal_reason: Text
    signal_step: Int
    signal_ns: Int
    signal_partition: Int
    signal_offset: LogOffset


class RunNotes(Row, table=True):
    """A note on an experiment or on one of its rollouts; `number` is the offset."""

    __tablename__ = "notes"

    experiment: Key
    number: LogOffsetKey
    experience: Id
    """The rollout; null for the experiment."""
    text: Text
    author: Text
    noted_ns: Int
    noted_partition: Int
    noted_offset: LogOffset


class Annotations(Row, table=True):
    """Star and labels of an experiment or of a rollout, as of the last commands."""

    __tablename__ = "annotations"

    experiment: Key
    experience: Key
    """The rollout; for the experiment its own id."""
    starred: Flag
    starred_ns: Int
    starred_partition: Int
    starred_offset: LogOffset
    labels: Text
    """JSON; null if the labels of the submission hold."""
    labelled_ns: Int
    labelled_partition: Int
    labelled_offset: LogOffset


class Stages(Row, table=True):
    """A stage of an experiment: settings from the submission, progress and best checkpoint from later events."""

    __tablename__ = "stages"

    experiment: Key
    stage: IntKey
    name: Text
    kind: Text
    algorithm: Text
    total_steps: Int
    batch_size: Int
    train_batch_size: Int
    submitted_partition: Int
    submitted_offset: LogOffset
    first_version: Int
    started_ns: Int
    started_partition: Int
    started_offset: LogOffset
    last_version: Int
    completed_ns: Int
    completed_partition: Int
    completed_offset: LogOffset
    best_version: Int
    """The version of the best checkpoint by evaluation; null without such a selection, or before the first one."""
    best_figure: Text
    best_value: Real
    best_base: Real
    """The same figure for the initial weights of the stage."""
    best_kept: Text
    """JSON: the versions whose checkpoints are kept for their evaluation."""
    best_ns: Int
    best_partition: Int
    best_offset: LogOffset
    stopped_by: Int
    """The version whose evaluation ended the stage before its last step; null if none did."""
    stopped_reason: Text
    stopped_ns: Int
    stopped_partition: Int
    stopped_offset: LogOffset


class Warnings(Row, table=True):
    """A warning about a changed or ignored setting: of the submission (`number` from 0) or later (`number` is the
    offset).
    """

    __tablename__ = "warnings"

    experiment: Key
    origin: TextKey
    """`submitted` or `warned`."""
    number: LogOffsetKey
    text: Text
    warned_ns: Int
    warned_partition: Int
    warned_offset: LogOffset


class Transitions(Row, table=True):
    """A change of an experiment's state or learning signal; `number` is the offset."""

    __tablename__ = "transitions"

    experiment: Key
    number: LogOffsetKey
    change: Text
    """The new state, `signal_lost` or `signal_regained`."""
    code: Text
    reason: Text
    step: Int
    """The first step of a lost signal, or of a regained one; null for a change of state."""
    moved_ns: Int
    moved_partition: Int
    moved_offset: LogOffset
