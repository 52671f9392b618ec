"""Training steps, generations and evaluations: folded from the spine; partial scores from `rftd.experiences`."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import Id, Int, IntKey, Key, LocalPath, LogOffset, Real, Row, Text


class Steps(Row, table=True):
    """A trained step: weight version `step` of `generation`, with batch, checksums and metrics."""

    __tablename__ = "steps"

    experiment: Key
    """Id of the experiment."""
    step: IntKey
    """Weight version made by the step."""
    generation: IntKey
    """Generation of the training history at the step."""
    batch: Id
    """Id of the trained batch."""
    stage: Int
    """Number of the stage."""
    checksum: Text
    """Checksum of all weights after the step: xxh3-128, or `bits:...` for tensors on a device."""
    sha256: Text
    """SHA-256 checksum of all weights, in deterministic mode and at checkpoints; else null."""
    items: Int
    """Number of experiences and dataset rows in the batch."""
    tokens: Int
    """Number of trained tokens, each with a gradient."""
    duration_s: Real
    """Seconds of training in the step."""
    metrics: Text
    """Metrics reported by the trainer, by name, as JSON."""
    completed_ns: Int
    """Time of the end of the step, Unix time in nanoseconds."""
    completed_partition: Int
    """Partition of the log with the record of the end of the step."""
    completed_offset: LogOffset
    """Offset of the record of the end of the step in the partition."""


class Generations(Row, table=True):
    """One resumption of the training history: its checkpoint and reason."""

    __tablename__ = "generations"

    experiment: Key
    """Id of the experiment."""
    generation: IntKey
    """Generation begun by the resumption, from 0."""
    version: Int
    """Weight version resumed from."""
    checkpoint: LocalPath
    """Path of the checkpoint resumed from; empty for the base model."""
    reason: Text
    """Reason for not using a newer checkpoint; empty without one."""
    started_ns: Int
    """Time of the resumption, Unix time in nanoseconds."""
    started_partition: Int
    """Partition of the log with the record of the resumption."""
    started_offset: LogOffset
    """Offset of the record of the resumption in the partition."""


class Evals(Row, table=True):
    """A completed evaluation of one weight version on one held-out taskset."""

    __tablename__ = "evals"
    __table_args__ = (Index("evals_experiment", "experiment", "version"),)

    id: Key
    """Id of the evaluation."""
    experiment: Id
    """Id of the experiment."""
    stage: Int
    """Number of the stage."""
    taskset: Text
    """Name of the held-out taskset."""
    version: Int
    """The evaluated weight version."""
    generation: Int
    """Generation of the evaluated weight version."""
    rows: Int
    """Number of evaluated rows."""
    score: Real
    """Mean reward of the answers."""
    metrics: Text
    """Further figures of the evaluation by name, as JSON."""
    completed_ns: Int
    """Time of the end of the evaluation, Unix time in nanoseconds."""
    completed_partition: Int
    """Partition of the log with the record of the end of the evaluation."""
    completed_offset: LogOffset
    """Offset of the record of the end of the evaluation in the partition."""


class EvalScores(Row, table=True):
    """An explorer's first score of a range of evaluation rows; counts only if the explorer held the lease."""

    __tablename__ = "eval_scores"

    eval: Key
    """Id of the evaluation."""
    row_start: IntKey
    """The first row of the range."""
    writer: Key
    """The explorer that wrote the record; records of other writers are in no table."""
    lease: Id
    """The lease answered by the score."""
    experiment: Id
    """Id of the experiment."""
    stage: Int
    """Number of the stage."""
    taskset: Int
    """Index of the taskset in the stage's `evals`."""
    version: Int
    """The evaluated weight version."""
    rows: Int
    """Number of rows in the range."""
    score: Real
    """Mean reward of the answers in the range."""
    tokens_mean: Real
    """Mean length of the responses, in tokens."""
    scored_ns: Int
    """Time of the score, Unix time in nanoseconds."""
    scored_partition: Int
    """Partition of the log with the record of the score."""
    scored_offset: LogOffset
    """Offset of the record of the score in the partition."""
