"""Weight versions, activations, overdue windows, checkpoints: folded from `rftd.weights` and `rftd.checkpoints`."""

from __future__ import annotations

from rftd.storage.database.tables.base import Flag, Id, Int, IntKey, Key, LocalPath, LogOffset, Real, Row, Text


class WeightVersions(Row, table=True):
    """(version, generation) as announced. Counts only if a step with this checksum is on the spine."""

    __tablename__ = "weight_versions"

    experiment: Key
    """Id of the experiment."""
    version: IntKey
    """The weight version; 0 for the base model."""
    generation: IntKey
    """Generation of the training history at the version."""
    stage: Int
    """Number of the stage."""
    method: Text
    """Weight channel of the publication, such as `checkpoint` or `memory`."""
    path: LocalPath
    """Path of the weights for the channel."""
    manifest: Text
    """xxh3-128 of the manifest."""
    checksum: Text
    """Checksum of the weights as trained, equal to the step's checksum."""
    size_bytes: Int
    """Size of the published weights, in bytes."""
    published_ns: Int
    """Time of the announcement, Unix time in nanoseconds."""
    published_partition: Int
    """Partition of the log with the record of the announcement."""
    published_offset: LogOffset
    """Offset of the record of the announcement in the partition."""
    retired_ns: Int
    """Time of the deletion, Unix time in nanoseconds."""
    retired_reason: Text
    """Reason for deleting the files, in words."""
    retired_partition: Int
    """Partition of the log with the record of the deletion."""
    retired_offset: LogOffset
    """Offset of the record of the deletion in the partition."""


class Activations(Row, table=True):
    """A worker's first use of a weight version, with the seconds taken to load the weights."""

    __tablename__ = "activations"

    worker: Key
    """Id of the worker."""
    version: IntKey
    """The activated weight version."""
    generation: IntKey
    """Generation of the activated weight version."""
    experiment: Id
    """Id of the experiment."""
    manifest: Text
    """xxh3-128 of the manifest read by the worker."""
    checksum: Text
    """Checksum of the loaded weights."""
    duration_s: Real
    """Seconds taken to load the weights."""
    activated_ns: Int
    """Time of the activation, Unix time in nanoseconds."""
    activated_partition: Int
    """Partition of the log with the record of the activation."""
    activated_offset: LogOffset
    """Offset of the record of the activation in the partition."""


class OverdueWindows(Row, table=True):
    """A window of a stage whose explorers waited at the sync point for longer than `sync_timeout`."""

    __tablename__ = "overdue_windows"

    experiment: Key
    """Id of the experiment."""
    stage: IntKey
    """Number of the stage."""
    number: IntKey
    """The number of the window, from 0."""
    wanted: Int
    """The version that explorers waited for; -1 for any newer version."""
    version: Int
    """The version used by the window instead; -1 if explorers continued to wait."""
    waited_s: Real
    """Seconds waited by the explorers."""
    reason: Text
    """Reason of the delay, in words."""
    overdue_ns: Int
    """Time of the report, Unix time in nanoseconds."""
    overdue_partition: Int
    """Partition of the log with the record of the report."""
    overdue_offset: LogOffset
    """Offset of the record of the report in the partition."""


class Checkpoints(Row, table=True):
    """A durable point to resume from. Counts only if a step with this checksum is on the spine."""

    __tablename__ = "checkpoints"

    experiment: Key
    """Id of the experiment."""
    step: IntKey
    """Weight version of the checkpoint, counted over the whole experiment."""
    generation: IntKey
    """Generation of the training history at the step."""
    stage: Int
    """Number of the stage."""
    stage_step: Int
    """N of the folder `global_step_N`, counted within the stage."""
    path: LocalPath
    """Path of the checkpoint's folder."""
    files: Int
    """Number of files in the folder."""
    size_bytes: Int
    """Size of all files together, in bytes."""
    checksum: Text
    """Checksum of the weights, equal to the step's checksum."""
    sha256: Text
    """SHA-256 checksum of the weights."""
    final: Flag
    """True for the stage's last checkpoint."""
    committed_ns: Int
    """Time of the commit, Unix time in nanoseconds."""
    committed_partition: Int
    """Partition of the log with the record of the commit."""
    committed_offset: LogOffset
    """Offset of the record of the commit in the partition."""
    deleted_ns: Int
    """Time of the deletion, Unix time in nanoseconds."""
    deleted_reason: Text
    """Reason for deleting the folder, in words."""
    deleted_partition: Int
    """Partition of the log with the record of the deletion."""
    deleted_offset: LogOffset
    """Offset of the record of the deletion in the partition."""
