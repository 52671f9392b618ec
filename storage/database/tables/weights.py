"""Weight versions, activations, overdue windows, checkpoints: folded from `rftd.weights` and `rftd.checkpoints`."""

from __future__ import annotations

from rftd.storage.database.tables.base import Flag, Id, Int, IntKey, Key, LocalPath, LogOffset, Real, Row, Text


class WeightVersions(Row, table=True):
    """(version, generation) as announced. Counts only if a step with this checksum is on the spine."""

    __tablename__ = "weight_versions"

    experiment: Key
    version: IntKey
    generation: IntKey
    stage: Int
    method: Text
    path: LocalPath
    manifest: Text
    checksum: Text
    size_bytes: Int
    published_ns: Int
    published_partition: Int
    published_offset: LogOffset
    retired_ns: Int
    retired_reason: Text
    retired_partition: Int
    retired_offset: LogOffset


class Activations(Row, table=True):
    """A worker's first use of a weight version, with the seconds taken to load the weights."""

    __tablename__ = "activations"

    worker: Key
    version: IntKey
    generation: IntKey
    experiment: Id
    manifest: Text
    checksum: Text
    duration_s: Real
    activated_ns: Int
    activated_partition: Int
    activated_offset: LogOffset


class OverdueWindows(Row, table=True):
    """A window of a stage whose explorers waited at the sync point for longer than `sync_timeout`."""

    __tablename__ = "overdue_windows"

    experiment: Key
    stage: IntKey
    number: IntKey
    """The number of the window, from 0."""
    wanted: Int
    """The version that explorers waited for; -1 for any newer version."""
    version: Int
    """The version used by the window instead; -1 if explorers continued to wait."""
    waited_s: Real
    reason: Text
    overdue_ns: Int
    overdue_partition: Int
    overdue_offset: LogOffset


class Checkpoints(Row, table=True):
    """A durable point to resume from. Counts only if a step with this checksum is on the spine."""

    __tablename__ = "checkpoints"

    experiment: Key
    step: IntKey
    generation: IntKey
    stage: Int
    stage_step: Int
    path: LocalPath
    files: Int
    size_bytes: Int
    checksum: Text
    sha256: Text
    final: Flag
    committed_ns: Int
    committed_partition: Int
    committed_offset: LogOffset
    deleted_ns: Int
    deleted_reason: Text
    deleted_partition: Int
    deleted_offset: LogOffset
