# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Rollouts in a span of time, each one or a sample of each bucket, and the plans of steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import COUNTED
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

MOST_ROLLOUTS: Final = 2_000
"""Maximum number of rollouts listed one by one."""
SAMPLE: Final = 32
"""Number of rollouts read of each bucket of a longer span: their number and durations give the mean under way."""
_SHORTEST_S: Final = 60.0
"""Shortest duration in seconds assumed of rollouts ended after the span."""


class RolloutTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one rollout: ended by an experience, or failed."""

    id: str | None
    """The experience; null for a failed rollout."""
    group: str
    """Id of the group."""
    rollout: int
    """Number of the rollout in its group, from 0."""
    worker: str
    """Id of the explorer."""
    begun_ns: int
    """Begin of the rollout; of a failed one, the time of its lease."""
    ended_ns: int
    """End of the rollout, Unix time in nanoseconds."""
    version: int | None
    """The newest weight version of the answer."""
    state: str
    """State of the experience, or `failed`."""
    reward: float | None
    """Reward of the experience; null for a failed rollout."""
    code: str | None
    """Reason of the retirement, or code of the failure."""


class RolloutSample(msgspec.Struct, frozen=True, kw_only=True):
    """The first rollouts of a bucket by one worker."""

    bucket: int
    """Number of the bucket of time, from 0."""
    worker: str
    """Id of the explorer."""
    rollouts: int
    """Number of rollouts in the sample."""
    seconds: float
    """Total duration of these rollouts."""
    last_ns: int
    """End of the last one."""


class PlanTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step's plan."""

    step: int
    """Number of the planned step."""
    planned_ns: int
    """Time of the plan, Unix time in nanoseconds."""


_PRODUCED: Final = f"""SELECT e.id, e.group_id AS "group", e.rollout, e.writer AS worker,
    e.produced_ns - CAST(COALESCE(e.duration_s, 0) * 1e9 AS BIGINT) AS begun_ns, e.produced_ns AS ended_ns,
    e.newest_version AS version, e.state AS state, e.reward, e.retired_reason AS code
FROM experiences e WHERE e.experiment = :experiment AND e.produced_ns BETWEEN :low AND :high AND {COUNTED}"""
"""SQL of a `RolloutTime` for each experience with effect, ended from `:low` to `:high`."""
_FAILED: Final = """SELECT NULL AS id, e.group_id AS "group", e.rollout, e.writer AS worker, l.leased_ns AS begun_ns,
    e.failed_ns AS ended_ns, NULL AS version, 'failed' AS state, NULL AS reward, e.failed_code AS code
FROM workers w JOIN leases l ON l.worker = w.id AND l.leased_ns BETWEEN :low AND :high AND l.kind = 'task'
    JOIN experiences e ON e.group_id = l.subject AND e.failed_lease = l.id AND e.writer = w.id
WHERE w.experiment = :experiment AND e.failed_offset IS NOT NULL AND e.state IS NULL AND e.failed_ns >= :begin
ORDER BY e.failed_ns LIMIT :most"""
"""SQL of a `RolloutTime` for each failed rollout, leased from `:low` to `:high` and ended from `:begin` on."""


async def rollouts_between(
    connection: AsyncConnection, experiment: UUID, begin_ns: int, end_ns: int
) -> list[RolloutTime] | None:
    """Returns the rollouts under way at some moment of a span, by their end; None if they are too many."""
    key = experiment.bytes
    sql = f"{_PRODUCED} ORDER BY e.produced_ns LIMIT :most"
    bounds = {"low": begin_ns, "high": end_ns, "most": MOST_ROLLOUTS + 1}
    rows = await fetch(connection, RolloutTime, sql, experiment=key, **bounds)
    if len(rows) > MOST_ROLLOUTS:
        return None
    longest_ns = max([int(_SHORTEST_S * 1e9), *(row.ended_ns - row.begun_ns for row in rows)])
    later = {"low": end_ns + 1, "high": end_ns + longest_ns, "most": MOST_ROLLOUTS}
    rows += [
        row for row in await fetch(connection, RolloutTime, sql, experiment=key, **later) if row.begun_ns <= end_ns
    ]
    failed = {"low": begin_ns - longest_ns, "high": end_ns, "begin": begin_ns, "most": MOST_ROLLOUTS}
    rows += await fetch(connection, RolloutTime, _FAILED, experiment=key, **failed)
    return sorted(rows, key=lambda row: (row.ended_ns, row.group, row.rollout))[:MOST_ROLLOUTS]


async def sampled_rollouts(
    connection: AsyncConnection, experiment: UUID, begins_ns: Sequence[int], end_ns: int
) -> list[RolloutSample]:
    """Returns the first rollouts ended in each bucket, by worker; buckets begin at `begins_ns`."""
    bounds = [*begins_ns, end_ns]
    # One short range of the index for each bucket: reading all rollouts of a long run would take seconds.
    buckets = " UNION ALL ".join(
        f"""SELECT * FROM (SELECT {bucket} AS bucket, e.writer AS writer, e.duration_s AS duration_s,
            e.produced_ns AS produced_ns FROM experiences e WHERE e.experiment = :experiment
            AND e.produced_ns >= {int(begin)} AND e.produced_ns < {int(end)} AND {COUNTED}
            ORDER BY e.produced_ns LIMIT {SAMPLE}) s{bucket}"""
        for bucket, (begin, end) in enumerate(itertools.pairwise(bounds))
    )
    return await fetch(
        connection,
        RolloutSample,
        f"""SELECT r.bucket, r.writer AS worker, COUNT(*) AS rollouts, COALESCE(SUM(r.duration_s), 0.0) AS seconds,
            MAX(r.produced_ns) AS last_ns
        FROM ({buckets}) r GROUP BY r.bucket, r.writer ORDER BY r.bucket, r.writer""",
        experiment=experiment.bytes,
    )


async def plans_of(connection: AsyncConnection, experiment: UUID, steps: Sequence[int]) -> dict[int, int]:
    """Returns the time of the first plan of each step, in nanoseconds, for steps with a plan."""
    if not steps:
        return {}
    numbers: dict[str, Any] = {f"step{number}": step for number, step in enumerate(steps)}
    rows = await fetch(
        connection,
        PlanTime,
        f"""SELECT b.step, MIN(b.decided_at_ns) AS planned_ns FROM batches b
        WHERE b.experiment = :experiment AND b.planned_offset IS NOT NULL AND b.decided_at_ns IS NOT NULL
            AND b.step IN ({", ".join(f":{name}" for name in numbers)})
        GROUP BY b.step""",
        experiment=experiment.bytes,
        **numbers,
    )
    return {row.step: row.planned_ns for row in rows}
