# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`Standing`: the present figures of an experiment, as gauges show them: of all that have not ended long ago."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import HELD, ITEM
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.experiments import QUEUE_POSITION, STEP
from rftd.storage.queries.rows import fetch, fetch_one
from rftd.storage.queries.steps import NEWEST, list_evals
from rftd.storage.queries.weights import ON_SPINE

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

MOST: Final = 100
"""The most experiments that are told of: those that run or pause first, then the newest."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one experiment; None where there is nothing yet."""

    id: str
    parent: str | None
    name: str
    number: int
    """It is the n-th of its name, as in `NAME@2`."""
    state: str
    state_ns: int
    """The time at which that state began, Unix time in nanoseconds, as the others."""
    queue_position: int | None
    queue_wait_ns: int | None
    """The time from its submission until it began; None while it has not begun."""
    submitted_ns: int
    stage: int
    """The number of the stage under way, or of the last."""
    stage_ns: int | None
    """The time at which it began."""
    signal_cause: str | None
    """The cause for which nothing is learnt; None or empty while something is."""
    step: int
    total_steps: int
    produced_ns: int | None
    """The time of the newest experience."""
    published_version: int | None
    """The newest weight version that was published and trained."""
    served_version: int | None
    """The oldest of the versions that live explorers have."""
    checkpoint_ns: int | None
    """The time of the last checkpoint that counts."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step that was trained last."""

    experiment: str
    batch: str
    metrics: dict[str, float | None]
    completed_ns: int


class _Reward(msgspec.Struct, frozen=True):
    reward: float


class Held(msgspec.Struct, frozen=True):
    """Workers of one role: all that have ended, or those alive that began at one moment."""

    experiment: str
    role: str
    alive_since_ns: int | None
    """The moment at which they began; None of those that have ended."""
    workers: int
    seconds: float
    """The time that those lived which have ended, all of them together."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told of one experiment but for its buffer."""

    standing: Standing
    step: LastStep | None
    rewards: list[float]
    """Those of the batch that was trained last, ascending."""
    scores: dict[str, float]
    """The last score on each held-out taskset."""


_ENDED: Final = "('completed', 'failed', 'cancelled', 'rejected')"
_NUMBER: Final = """(SELECT COUNT(*) FROM experiments o WHERE o.name = x.name AND o.submitted_offset IS NOT NULL
    AND (o.submitted_ns, o.id) <= (x.submitted_ns, x.id))"""
_STANDING: Final = f"""
SELECT x.id, x.parent, x.name, {_NUMBER} AS number, COALESCE(x.state, 'submitted') AS state,
    COALESCE(x.state_ns, x.submitted_ns) AS state_ns, {QUEUE_POSITION} AS queue_position,
    x.started_ns - x.submitted_ns AS queue_wait_ns, x.submitted_ns, x.signal_cause,
    COALESCE((SELECT MAX(s.stage) FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL), 0)
        AS stage,
    (SELECT MAX(s.started_ns) FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL) AS stage_ns,
    {STEP} AS step, x.total_steps,
    (SELECT e.produced_ns FROM experiences e WHERE e.experiment = x.id AND e.produced_ns IS NOT NULL AND {HELD}
        ORDER BY e.produced_ns DESC LIMIT 1) AS produced_ns,
    (SELECT a.version FROM weight_versions a WHERE a.experiment = x.id AND a.published_offset IS NOT NULL
        AND (a.version = 0 OR {ON_SPINE.format(version="a.version")})
        ORDER BY a.version DESC LIMIT 1) AS published_version,
    (SELECT MIN(v.version) FROM (SELECT MAX(h.version) AS version FROM workers w JOIN activations h ON h.worker = w.id
        WHERE w.experiment = x.id AND w.role = 'explorer' AND w.started_offset IS NOT NULL
            AND w.stopped_offset IS NULL AND w.lost_offset IS NULL GROUP BY w.id) v) AS served_version,
    (SELECT MAX(a.committed_ns) FROM checkpoints a WHERE a.experiment = x.id AND a.committed_offset IS NOT NULL
        AND {ON_SPINE.format(version="a.step")}) AS checkpoint_ns
FROM experiments x WHERE x.submitted_offset IS NOT NULL
    AND (COALESCE(x.state, 'submitted') NOT IN {_ENDED} OR x.state_ns > :since)
ORDER BY CASE WHEN x.state IN ('running', 'paused') THEN 0 ELSE 1 END, x.submitted_ns DESC, x.id LIMIT :most
"""
_LAST: Final = f"""SELECT t.experiment, t.batch, t.metrics, t.completed_ns FROM {EXECUTED} t
WHERE t.experiment = :experiment AND {NEWEST} ORDER BY t.step DESC LIMIT 1"""


async def list_figures(
    connection: AsyncConnection, *, since_ns: int, unchanged: Mapping[str, Figures] = MappingProxyType({})
) -> list[Figures]:
    """The figures of each experiment that has not ended, or ended after `since_ns`; no more than `MOST`.

    `unchanged` are those that were read before, by id, of experiments about which nothing was added to the tables.
    """
    found = []
    for standing in await fetch(connection, Standing, _STANDING, since=since_ns, most=MOST):
        before = unchanged.get(standing.id)
        # Not of a fork, which has its parent's evaluations too.
        if before is not None and standing.parent is None:
            found.append(msgspec.structs.replace(before, standing=standing))
            continue
        experiment = UUID(standing.id)
        last = await fetch_one(connection, LastStep, _LAST, experiment=experiment.bytes)
        scored = await list_evals(connection, experiment)
        found.append(
            Figures(
                standing=standing,
                step=last,
                rewards=[] if last is None else await _rewards(connection, UUID(last.batch)),
                scores={row.taskset: row.score for row in scored if row.score is not None},
            )
        )
    return found


async def _rewards(connection: AsyncConnection, batch: UUID) -> list[float]:
    sql = f"""SELECT e.reward FROM batch_items i JOIN experiences e ON {ITEM}
    WHERE i.batch = :batch AND e.reward IS NOT NULL ORDER BY e.reward"""
    return [row.reward for row in await fetch(connection, _Reward, sql, batch=batch.bytes)]


async def list_held(connection: AsyncConnection, *, since_ns: int) -> list[Held]:
    """The workers of the experiments that have not ended, or ended after `since_ns`.

    One that nobody has seen end is alive until its experiment ends.
    """
    # Postgres sums 64-bit integers as numeric, which its driver gives as Decimal.
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
