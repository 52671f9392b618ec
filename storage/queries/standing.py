# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`Standing`: the current figures of experiments for gauges, except experiments ended long ago."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import ITEM, LEASE_HELD
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.experiments import QUEUE, STEP
from rftd.storage.queries.rows import fetch, fetch_one
from rftd.storage.queries.steps import NEWEST, list_evals
from rftd.storage.queries.weights import ON_SPINE

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

MOST: Final = 100
"""Maximum number of reported experiments: running or paused ones first, then the newest."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an experiment; None for a figure without data yet."""

    id: str
    """Id of the experiment."""
    parent: str | None
    """Id of the experiment continued by this fork; None for an experiment begun anew."""
    name: str
    """Name of the experiment, shared by experiments submitted again."""
    number: int
    """Ordinal among the experiments of this name, as in `NAME@2`."""
    state: str
    """Present state of the experiment; `submitted` before the first transition."""
    state_ns: int
    """Start of the current state, Unix time in nanoseconds, as all times here."""
    queue_position: int | None
    """Position in the queue, 1 for the next experiment to start; None outside the queue."""
    queue_wait_ns: int | None
    """Time from submission to start; None before the start."""
    submitted_ns: int
    """Time of the submission."""
    stage: int
    """The number of the current stage, or of the last."""
    stage_ns: int | None
    """Start time of the stage."""
    signal_cause: str | None
    """The cause for which nothing is learnt; None or empty while there is a learning signal."""
    step: int
    """The newest trained weight version."""
    total_steps: int
    """Number of steps of all stages together."""
    produced_ns: int | None
    """The time of the newest experience."""
    published_version: int | None
    """The newest weight version that was trained and published."""
    served_version: int | None
    """The oldest weight version among live explorers."""
    checkpoint_ns: int | None
    """The time of the last checkpoint that counts."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The newest trained step of an experiment, with metrics and completion time."""

    experiment: str
    """Id of the experiment."""
    batch: str
    """Id of the batch trained in the step."""
    metrics: dict[str, float | None]
    """Metrics reported by the trainer, by name; None for a recorded NaN or infinity."""
    completed_ns: int
    """End of the step, Unix time in nanoseconds."""


class _Reward(msgspec.Struct, frozen=True):
    """A row with the reward of one experience of a batch."""

    reward: float
    """Reward of the experience."""


class Held(msgspec.Struct, frozen=True):
    """Workers of a role: all ended workers, or the live workers started at a moment."""

    experiment: str
    """Id of the experiment."""
    role: str
    """Role of the workers: `explorer` or `trainer`."""
    alive_since_ns: int | None
    """Start time of the live workers; None for ended ones."""
    workers: int
    """Number of workers in this row."""
    seconds: float
    """Total seconds lived by ended workers."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All reported figures of an experiment except the buffer's."""

    standing: Standing
    """State, queue position, stage, step and newest times of the experiment."""
    step: LastStep | None
    """The newest trained step; None before the first one."""
    rewards: list[float]
    """Rewards of the newest trained batch, ascending."""
    scores: dict[str, float]
    """The last score on each held-out taskset."""


_ENDED: Final = "('completed', 'failed', 'cancelled', 'rejected')"
"""SQL list of the final states of an experiment."""
_NUMBER: Final = """(SELECT COUNT(*) FROM experiments o WHERE o.name = x.name AND o.submitted_offset IS NOT NULL
    AND (o.submitted_ns, o.id) <= (x.submitted_ns, x.id))"""
"""SQL expression: ordinal of `experiments x` among experiments of an equal name, by submission, from 1."""
_STANDING: Final = f"""
SELECT x.id, x.parent, x.name, {_NUMBER} AS number, COALESCE(x.state, 'submitted') AS state,
    COALESCE(x.state_ns, x.submitted_ns) AS state_ns, q.queue_position,
    x.started_ns - x.submitted_ns AS queue_wait_ns, x.submitted_ns, x.signal_cause,
    COALESCE((SELECT MAX(s.stage) FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL), 0)
        AS stage,
    (SELECT MAX(s.started_ns) FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL) AS stage_ns,
    {STEP} AS step, x.total_steps,
    (SELECT e.produced_ns FROM experiences e WHERE e.experiment = x.id AND e.produced_ns IS NOT NULL AND {LEASE_HELD}
        ORDER BY e.produced_ns DESC LIMIT 1) AS produced_ns,
    (SELECT a.version FROM weight_versions a WHERE a.experiment = x.id AND a.published_offset IS NOT NULL
        AND (a.version = 0 OR {ON_SPINE.format(version="a.version")})
        ORDER BY a.version DESC LIMIT 1) AS published_version,
    (SELECT MIN(v.version) FROM (SELECT MAX(h.version) AS version FROM workers w JOIN activations h ON h.worker = w.id
        WHERE w.experiment = x.id AND w.role = 'explorer' AND w.started_offset IS NOT NULL
            AND w.stopped_offset IS NULL AND w.lost_offset IS NULL GROUP BY w.id) v) AS served_version,
    (SELECT MAX(a.committed_ns) FROM checkpoints a WHERE a.experiment = x.id AND a.committed_offset IS NOT NULL
        AND {ON_SPINE.format(version="a.step")}) AS checkpoint_ns
FROM experiments x {QUEUE} WHERE x.submitted_offset IS NOT NULL
    AND (COALESCE(x.state, 'submitted') NOT IN {_ENDED} OR x.state_ns > :since)
ORDER BY CASE WHEN x.state IN ('running', 'paused') THEN 0 ELSE 1 END, x.submitted_ns DESC, x.id LIMIT :most
"""
"""SQL of a `Standing` for each experiment in progress or ended after `:since`; running and paused ones first."""
_LAST: Final = f"""SELECT t.experiment, t.batch, t.metrics, t.completed_ns FROM {EXECUTED} t
WHERE t.experiment = :experiment AND {NEWEST} ORDER BY t.step DESC LIMIT 1"""
"""SQL of the `LastStep` of an experiment, in the newest generation."""


async def list_figures(
    connection: AsyncConnection, *, since_ns: int, unchanged: Mapping[str, Figures] = MappingProxyType({})
) -> list[Figures]:
    """Returns the figures of each experiment that has not ended, or ended after `since_ns`; at most `MOST`.

    `unchanged` has earlier figures by experiment id, for experiments without new records in the tables.
    """
    rows = []
    for standing in await fetch(connection, Standing, _STANDING, since=since_ns, most=MOST):
        before = unchanged.get(standing.id)
        # Not for a fork, with figures including the parent's evaluations.
        if before is not None and standing.parent is None:
            rows.append(msgspec.structs.replace(before, standing=standing))
            continue
        experiment = UUID(standing.id)
        last = await fetch_one(connection, LastStep, _LAST, experiment=experiment.bytes)
        scored = await list_evals(connection, experiment)
        rows.append(
            Figures(
                standing=standing,
                step=last,
                rewards=[] if last is None else await _rewards(connection, UUID(last.batch)),
                scores={row.taskset: row.score for row in scored if row.score is not None},
            )
        )
    return rows


async def _rewards(connection: AsyncConnection, batch: UUID) -> list[float]:
    """Returns the rewards of a batch's experiences, ascending, without experiences lacking a reward."""
    sql = f"""SELECT e.reward FROM batch_items i JOIN experiences e ON {ITEM}
    WHERE i.batch = :batch AND e.reward IS NOT NULL ORDER BY e.reward"""
    return [row.reward for row in await fetch(connection, _Reward, sql, batch=batch.bytes)]


async def list_held(connection: AsyncConnection, *, since_ns: int) -> list[Held]:
    """Returns the workers of experiments that have not ended, or ended after `since_ns`.

    A worker without a recorded end counts as alive until the experiment ends.
    """
    # Postgres sums 64-bit integers as numeric, returned by the driver as Decimal.
    sql = f"""SELECT experiment, role, alive_since_ns, COUNT(*) AS workers,
        CAST(SUM(lived_ns) AS DOUBLE PRECISION) / 1e9 AS seconds
    FROM (SELECT experiment, role, CASE WHEN until_ns IS NULL THEN started_ns END AS alive_since_ns,
            CASE WHEN until_ns > started_ns THEN until_ns - started_ns ELSE 0 END AS lived_ns
        FROM (SELECT w.experiment AS experiment, w.role AS role, w.started_ns AS started_ns,
                COALESCE(w.stopped_ns, w.lost_ns, CASE WHEN x.state IN {_ENDED} THEN x.state_ns END) AS until_ns
            FROM workers w JOIN experiments x ON x.id = w.experiment
            WHERE w.started_offset IS NOT NULL AND x.submitted_offset IS NOT NULL
                AND (COALESCE(x.state, 'submitted') NOT IN {_ENDED} OR x.state_ns > :since)) u) v
    GROUP BY experiment, role, alive_since_ns"""
    return await fetch(connection, Held, sql, since=since_ns)
