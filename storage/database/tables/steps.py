"""Training steps, generations and evaluations: folded from the spine; partial scores from `rftd.experiences`."""

from __future__ import annotations

from sqlalchemy import Index

from rftd.storage.database.tables.base import Id, Int, IntKey, Key, LocalPath, LogOffset, Real, Row, Text


class Steps(Row, table=True):
    """A trained step: weight version `step` of `generation`, with batch, checksums and metrics."""

    __tablename__ = "steps"

    experiment: Key
    step: IntKey
    generation: IntKey
    batch: Id
    stage: Int
    checksum: Text
    sha256: Text
    items: Int
    tokens: Int
    duration_s: Real
    metrics: Text
    """JSON."""
    completed_ns: Int
    completed_partition: Int
    completed_offset: LogOffset


class Generations(Row, table=True):
    """One resumption of the training history: its checkpoint and reason."""

    __tablename__ = "generations"

    experiment: Key
    generation: IntKey
    version: Int
    checkpoint: LocalPath
    reason: Text
    started_ns: Int
    started_partition: Int
    started_offset: LogOffset


class Evals(Row, table=True):
    """A completed evaluation of one weight version on one held-out taskset."""

    __tablename__ = "evals"
    __table_args__ = (Index("evals_experiment", "experiment", "version"),)

    id: Key
    experiment: Id
    stage: Int
    taskset: Text
    version: Int
    generation: Int
    rows: Int
    score: Real
    metrics: Text
    """JSON."""
    completed_ns: Int
    completed_partition: Int
    completed_offset: LogOffset


class EvalScores(Row, table=True):
    """An explorer's first score of a range of evaluation rows; counts only if the explorer held the lease."""

    __tablename__ = "eval_scores"

    eval: Key
    row_start: IntKey
    writer: Key
    """The explorer that wrote the record; records of other writers are in no table."""
    lease: Id
    """The lease answered by the score."""
    experiment: Id
    stage: Int
    taskset: Int
    version: Int
    rows: Int
    score: Real
    tokens_mean: Real
    scored_ns: Int
    scored_partition: Int
    scored_offset: LogOffset
