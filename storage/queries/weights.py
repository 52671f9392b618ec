# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Weight versions, overdue windows, checkpoints, and workers with weight versions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.shares import ENDLESS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class WeightRow(msgspec.Struct, frozen=True, kw_only=True):
    """An announced weight version, with location, checksum and size in bytes."""

    version: int
    """The weight version; 0 for the base model."""
    generation: int
    """Generation of the training history at the version."""
    stage: int
    """Number of the stage."""
    method: str
    """Weight channel of the publication: such as `checkpoint` or `memory`."""
    path: str
    """Path of the weights for the channel."""
    manifest: str
    """xxh3-128 of the manifest."""
    checksum: str
    """Checksum of the weights as trained, equal to the step's checksum."""
    size_bytes: int
    """Size of the published weights, in bytes."""
    published_ns: int
    """Time of the announcement, Unix time in nanoseconds."""
    counts: bool
    """True if a step with this checksum is on the spine (version 0 needs none)."""
    retired_reason: str | None
    """The reason why the files were deleted; None while they exist."""
    holders: int
    """Number of workers that have used the version."""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint, with location, checksums and size in bytes."""

    step: int
    """Weight version of the checkpoint, counted over the whole experiment."""
    generation: int
    """Generation of the training history at the step."""
    stage: int
    """Number of the stage."""
    stage_step: int
    """N of the folder `global_step_N`, counted within the stage."""
    path: str
    """Path of the checkpoint's folder."""
    files: int
    """Number of files in the folder."""
    size_bytes: int
    """Size of all files together, in bytes."""
    checksum: str
    """Checksum of the weights, equal to the step's checksum."""
    sha256: str
    """SHA-256 checksum of the weights."""
    final: bool
    """True for the stage's last checkpoint."""
    committed_ns: int
    """Time of the commit, Unix time in nanoseconds."""
    counts: bool
    """True if a step with this checksum is on the spine."""
    deleted_reason: str | None
    """The reason why the folder was deleted; None while it exists."""


class OverdueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A window with explorers waiting at the sync point for longer than `sync_timeout`."""

    stage: int
    """Number of the stage."""
    window: int
    """Number of the window in the stage, from 0."""
    wanted: int
    """The version that explorers waited for; -1 for any newer version."""
    version: int
    """The version used by the window instead; -1 if explorers continued to wait."""
    waited_s: float
    """Seconds waited by the explorers."""
    reason: str
    """Reason of the delay, in words."""
    overdue_ns: int
    """Time of the record, Unix time in nanoseconds."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. Whether a live worker is busy is known from heartbeats, which are in no table."""

    id: str
    """Id of the worker process."""
    experiment: str | None
    """Id of the worker's experiment."""
    role: str
    """Role of the worker: `explorer` or `trainer`."""
    slot: int
    """The worker's partition of `rftd.tasks`; -1 for a trainer."""
    host: str
    """Name of the worker's machine."""
    pid: int
    """Process id on the worker's machine."""
    capacity: int
    """Maximum number of concurrent rollouts."""
    started_ns: int
    """Start of the process, Unix time in nanoseconds."""
    state: str
    """`live`, `stopped` or `lost`."""
    ended_ns: int | None
    """Time of the stop or of the loss, Unix time in nanoseconds; null for a live worker."""
    code: str | None
    """Error code of the stop; null for a live or lost worker, empty after a clean stop."""
    reason: str | None
    """Reason of the stop or of the loss, in words; null for a live worker."""
    version: int | None
    """The newest weight version used by the worker."""


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The peak memory, in bytes, of a role's ended workers."""

    role: str
    """Role of the workers: `explorer` or `trainer`."""
    size_bytes: int
    """Peak memory of the role's ended workers, in bytes."""


ON_SPINE: Final = f"""EXISTS (SELECT 1 FROM {EXECUTED} t WHERE t.experiment = a.experiment AND t.step = {{version}}
    AND t.generation = a.generation AND t.checksum = a.checksum)"""
"""SQL condition on `a`, weights or a checkpoint of some `{version}`: a step with this checksum is on the spine."""


async def list_weights(connection: AsyncConnection, experiment: UUID, *, newest: int | None = None) -> list[WeightRow]:
    """Returns the announced weight versions, or the `newest` of them, oldest first; flagged whether they count."""
    # A resumed trainer may publish a version again after retirement: the later of the two events holds.
    rows = await fetch(
        connection,
        WeightRow,
        f"""SELECT a.version, a.generation, a.stage, a.method, a.path, a.manifest, a.checksum, a.size_bytes,
            a.published_ns, (a.version = 0 OR {ON_SPINE.format(version="a.version")}) AS counts,
            CASE WHEN a.retired_offset > a.published_offset THEN a.retired_reason END AS retired_reason,
            (SELECT COUNT(*) FROM workers w JOIN activations h ON h.worker = w.id AND h.version = a.version
                AND h.generation = a.generation WHERE w.experiment = a.experiment) AS holders
        FROM weight_versions a WHERE a.experiment = :experiment AND a.published_offset IS NOT NULL
        ORDER BY a.version DESC, a.generation DESC LIMIT :most""",
        experiment=experiment.bytes,
        most=ENDLESS if newest is None else newest,
    )
    return rows[::-1]


CHECKPOINTS: Final = f"""SELECT a.step, a.generation, a.stage, a.stage_step, a.path, a.files, a.size_bytes,
    a.checksum, a.sha256, a.final, a.committed_ns, {ON_SPINE.format(version="a.step")} AS counts,
    CASE WHEN a.deleted_offset > a.committed_offset THEN a.deleted_reason END AS deleted_reason
FROM checkpoints a WHERE a.experiment = :experiment AND a.committed_offset IS NOT NULL"""
"""SQL of every `CheckpointRow` of an experiment, to be continued by conditions on `checkpoints a`."""
# As with weights: a step saved again after its folder was deleted has a folder again.
PRESENT: Final = "AND (a.deleted_offset IS NULL OR a.deleted_offset <= a.committed_offset)"
"""SQL condition on `checkpoints a`: its folder exists."""


async def list_checkpoints(connection: AsyncConnection, experiment: UUID) -> list[CheckpointRow]:
    """Returns the committed checkpoints, oldest first; each with flags whether it counts and still exists."""
    text = f"{CHECKPOINTS} ORDER BY a.step, a.generation"
    return await fetch(connection, CheckpointRow, text, experiment=experiment.bytes)


async def existing_checkpoints(
    connection: AsyncConnection, experiment: UUID, *, newest: int, beside: Collection[int] = ()
) -> list[CheckpointRow]:
    """Returns the `newest` existing checkpoints, and existing older ones of the steps `beside`, oldest first."""
    rows = await fetch(
        connection,
        CheckpointRow,
        f"{CHECKPOINTS} {PRESENT} ORDER BY a.step DESC, a.generation DESC LIMIT :newest",
        experiment=experiment.bytes,
        newest=newest,
    )
    rows.reverse()
    first = (rows[0].step, rows[0].generation) if rows else (0, 0)
    steps = ", ".join(str(int(step)) for step in sorted(beside))
    if not steps or len(rows) < newest:
        return rows
    text = f"{CHECKPOINTS} {PRESENT} AND a.step IN ({steps}) ORDER BY a.step, a.generation"
    older = await fetch(connection, CheckpointRow, text, experiment=experiment.bytes)
    return [row for row in older if (row.step, row.generation) < first] + rows


async def list_overdue(connection: AsyncConnection, experiment: UUID, *, newest: int | None = None) -> list[OverdueRow]:
    """Returns the windows with overdue weights, or the `newest` of them, in order."""
    rows = await fetch(
        connection,
        OverdueRow,
        """SELECT w.stage, w.number AS "window", w.wanted, w.version, w.waited_s, w.reason, w.overdue_ns
        FROM overdue_windows w WHERE w.experiment = :experiment AND w.overdue_offset IS NOT NULL
        ORDER BY w.stage DESC, w.number DESC LIMIT :most""",
        experiment=experiment.bytes,
        most=ENDLESS if newest is None else newest,
    )
    return rows[::-1]


async def count_overdue(connection: AsyncConnection, experiment: UUID) -> int:
    """Returns the number of windows with overdue weights."""
    text = """SELECT COUNT(*) AS number FROM overdue_windows w
    WHERE w.experiment = :experiment AND w.overdue_offset IS NOT NULL"""
    [row] = await fetch(connection, _Number, text, experiment=experiment.bytes)
    return row.number


_WORKER_STATE: Final = """CASE WHEN w.stopped_offset IS NOT NULL THEN 'stopped' WHEN w.lost_offset IS NOT NULL
    THEN 'lost' ELSE 'live' END"""
"""SQL expression on `workers w`: `stopped`, `lost` or `live`."""
_WORKERS: Final = f"""SELECT w.id, w.experiment, w.role, w.slot, w.host, w.pid, w.capacity, w.started_ns,
    {_WORKER_STATE} AS state, COALESCE(w.stopped_ns, w.lost_ns) AS ended_ns, w.stopped_code AS code,
    COALESCE(w.stopped_reason, w.lost_reason) AS reason,
    (SELECT MAX(h.version) FROM activations h WHERE h.worker = w.id) AS version
FROM workers w WHERE w.started_offset IS NOT NULL"""
"""SQL of a `WorkerRow` for each started worker, to be extended by further conditions."""


async def list_workers(
    connection: AsyncConnection, experiment: UUID | None = None, *, newest: int | None = None
) -> list[WorkerRow]:
    """Returns the workers of an experiment or of all, or the `newest` of them, in order of start."""
    chosen = "AND w.experiment = :experiment" if experiment is not None else ""
    parameters = {"experiment": experiment.bytes} if experiment is not None else {}
    text = f"{_WORKERS} {chosen} ORDER BY w.started_ns DESC, w.id DESC LIMIT :most"
    most = ENDLESS if newest is None else newest
    return (await fetch(connection, WorkerRow, text, most=most, **parameters))[::-1]


async def newest_workers(connection: AsyncConnection, *, state: str | None, limit: int) -> list[WorkerRow]:
    """Returns the workers of all experiments started last, in one `state` or in any."""
    chosen = f"AND {_WORKER_STATE} = :state" if state is not None else ""
    parameters = {"state": state} if state is not None else {}
    order = "ORDER BY w.started_ns DESC, w.id DESC LIMIT :limit"
    return await fetch(connection, WorkerRow, f"{_WORKERS} {chosen} {order}", limit=limit, **parameters)


async def worker_names(connection: AsyncConnection, workers: Sequence[WorkerRow]) -> dict[str, str]:
    """Returns the names of the workers' experiments by id."""
    names: dict[str, str] = {}
    for experiment in {worker.experiment for worker in workers if worker.experiment is not None}:
        rows = await fetch(connection, _Named, "SELECT name FROM experiments WHERE id = :id", id=UUID(experiment).bytes)
        names[experiment] = next((row.name for row in rows if row.name is not None), "")
    return names


async def count_live_workers(connection: AsyncConnection) -> int:
    """Returns the number of workers that have neither stopped nor been lost."""
    live = "SELECT COUNT(*) AS number FROM workers w WHERE w.started_offset IS NOT NULL AND"
    [row] = await fetch(connection, _Number, f"{live} w.stopped_offset IS NULL AND w.lost_offset IS NULL")
    return row.number


class _Named(msgspec.Struct, frozen=True):
    """A row with the name of an experiment."""

    name: str | None
    """Name of the experiment; None for an experiment known only by its workers."""


class _Number(msgspec.Struct, frozen=True):
    """A row with a count."""

    number: int
    """The counted number."""


async def memory_peaks(connection: AsyncConnection, experiment: UUID) -> dict[str, int]:
    """Returns the peak memory in bytes of the ended workers of each role, as far as recorded."""
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
