# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Weight versions, windows that waited for some, checkpoints, and the workers that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.shares import ENDLESS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class WeightRow(msgspec.Struct, frozen=True, kw_only=True):
    """One announced weight version."""

    version: int
    generation: int
    stage: int
    method: str
    path: str
    manifest: str
    checksum: str
    size_bytes: int
    published_ns: int
    counts: bool
    """True if its step, with this checksum, is on the spine (version 0 needs none)."""
    retired_reason: str | None
    """The reason why its files are gone; None while they are there."""
    holders: int
    """Workers that have used it."""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One committed checkpoint."""

    step: int
    generation: int
    stage: int
    stage_step: int
    path: str
    files: int
    size_bytes: int
    checksum: str
    sha256: str
    final: bool
    committed_ns: int
    counts: bool
    """True if its step, with this checksum, is on the spine."""
    deleted_reason: str | None
    """The reason why its folder is gone; None while it is there."""


class OverdueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A window for which explorers waited at its sync point for longer than `sync_timeout`."""

    stage: int
    window: int
    wanted: int
    """The version that was waited for; -1 for any that is newer."""
    version: int
    """The version that it ran on instead; -1 if it went on waiting."""
    waited_s: float
    reason: str
    overdue_ns: int


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. Whether a live one is busy is in its heartbeats, which no table holds."""

    id: str
    experiment: str | None
    role: str
    slot: int
    host: str
    pid: int
    capacity: int
    started_ns: int
    state: str
    """`live`, `stopped` or `lost`."""
    ended_ns: int | None
    code: str | None
    reason: str | None
    version: int | None
    """The newest weight version that it has used."""


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The most memory of the ended workers of a role."""

    role: str
    size_bytes: int


ON_SPINE: Final = f"""EXISTS (SELECT 1 FROM {EXECUTED} t WHERE t.experiment = a.experiment AND t.step = {{version}}
    AND t.generation = a.generation AND t.checksum = a.checksum)"""
"""True of `a`, weights or a checkpoint of some `{version}`, if its step is on the spine with this checksum."""


async def list_weights(connection: AsyncConnection, experiment: UUID, *, newest: int | None = None) -> list[WeightRow]:
    """The announced weight versions, or the `newest` of them, oldest first; each says whether it counts (rule 3)."""
    # A version may be published again after it was retired, by a resumed trainer: the later of the two events holds.
    rows = await fetch(
        connection,
        WeightRow,
        f"""SELECT a.version, a.generation, a.stage, a.method, a.path, a.manifest, a.checksum, a.size_bytes,
            a.published_ns, (a.version = 0 OR {ON_SPINE.format(version="a.version")}) AS counts,
            CASE WHEN a.retired_offset > a.published_offset THEN a.retired_reason END AS retired_reason,
            (SELECT COUNT(*) FROM activations h WHERE h.experiment = a.experiment AND h.version = a.version
                AND h.generation = a.generation) AS holders
        FROM weight_versions a WHERE a.experiment = :experiment AND a.published_offset IS NOT NULL
        ORDER BY a.version DESC, a.generation DESC LIMIT :most""",
        experiment=experiment.bytes,
        most=ENDLESS if newest is None else newest,
    )
    return rows[::-1]


async def list_checkpoints(connection: AsyncConnection, experiment: UUID) -> list[CheckpointRow]:
    """The committed checkpoints, oldest first; each says whether it counts (rule 3) and is still there."""
    # As with weights: a step that is saved again after its folder was deleted has a folder again.
    return await fetch(
        connection,
        CheckpointRow,
        f"""SELECT a.step, a.generation, a.stage, a.stage_step, a.path, a.files, a.size_bytes, a.checksum, a.sha256,
            a.final, a.committed_ns, {ON_SPINE.format(version="a.step")} AS counts,
            CASE WHEN a.deleted_offset > a.committed_offset THEN a.deleted_reason END AS deleted_reason
        FROM checkpoints a WHERE a.experiment = :experiment AND a.committed_offset IS NOT NULL
        ORDER BY a.step, a.generation""",
        experiment=experiment.bytes,
    )


async def list_overdue(connection: AsyncConnection, experiment: UUID) -> list[OverdueRow]:
    """Windows that waited too long for weights, in order."""
    return await fetch(
        connection,
        OverdueRow,
        """SELECT w.stage, w.number AS "window", w.wanted, w.version, w.waited_s, w.reason, w.overdue_ns
        FROM overdue_windows w WHERE w.experiment = :experiment AND w.overdue_offset IS NOT NULL
        ORDER BY w.stage, w.number""",
        experiment=experiment.bytes,
    )


async def list_workers(connection: AsyncConnection, experiment: UUID | None = None) -> list[WorkerRow]:
    """Workers of one experiment, or of all, in the order in which they joined."""
    chosen = "AND w.experiment = :experiment" if experiment is not None else ""
    parameters = {"experiment": experiment.bytes} if experiment is not None else {}
    return await fetch(
        connection,
        WorkerRow,
        f"""SELECT w.id, w.experiment, w.role, w.slot, w.host, w.pid, w.capacity, w.started_ns,
            CASE WHEN w.stopped_offset IS NOT NULL THEN 'stopped' WHEN w.lost_offset IS NOT NULL THEN 'lost'
                ELSE 'live' END AS state,
            COALESCE(w.stopped_ns, w.lost_ns) AS ended_ns, w.stopped_code AS code,
            COALESCE(w.stopped_reason, w.lost_reason) AS reason,
            (SELECT MAX(h.version) FROM activations h WHERE h.worker = w.id) AS version
        FROM workers w WHERE w.started_offset IS NOT NULL {chosen} ORDER BY w.started_ns, w.id""",
        **parameters,
    )


async def memory_peaks(connection: AsyncConnection, experiment: UUID) -> dict[str, int]:
    """The most memory that a worker of each role was seen to have before it ended, in bytes, as far as it was told."""
    rows = await fetch(
        connection,
        MemoryPeak,
        """SELECT w.role AS role, MAX(COALESCE(w.stopped_memory_bytes, w.lost_memory_bytes)) AS size_bytes
        FROM workers w WHERE w.experiment = :experiment AND w.role IS NOT NULL
            AND COALESCE(w.stopped_memory_bytes, w.lost_memory_bytes) > 0
        GROUP BY w.role ORDER BY w.role""",
        experiment=experiment.bytes,
    )
    return {row.role: row.size_bytes for row in rows}
