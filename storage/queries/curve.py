# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`RewardCurves`: the rewards of each trained step, cached because a batch's rewards never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.storage.queries.books import ITEM
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch, fetch_one
from rftd.storage.queries.shares import Share, shares_of
from rftd.storage.queries.steps import NEWEST

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

KEPT_POINTS: Final = 100_000
"""Maximum cached points of all curves; beyond it, the whole cache is dropped and read again."""


class RewardPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of the batch trained in a step."""

    step: int
    stage: int
    reward_mean: float
    reward_min: float
    reward_max: float
    experiences: int
    inherited: bool = False
    """True if the step was made by an ancestor of this fork."""


class _Rewards(msgspec.Struct, frozen=True):
    step: int
    stage: int
    reward_mean: float | None
    reward_min: float | None
    reward_max: float | None
    experiences: int
    planned: int
    """Items of the batch that are experiences."""


class _Generation(msgspec.Struct, frozen=True):
    generation: int | None


class _CachedCurve(NamedTuple):
    """The stable beginning of a curve: no step up to `last` changes in the given generation of the history."""

    generation: int | None
    last: int
    points: list[RewardPoint]


class RewardCurves:
    """Curves of some experiments, read once and then only beyond the cached points."""

    def __init__(self) -> None:
        self._cache: dict[tuple[UUID, int, int], _CachedCurve] = {}

    async def of(self, connection: AsyncConnection, experiment: UUID) -> list[RewardPoint]:
        """Returns the rewards of each trained step's batch; steps on dataset rows have none."""
        points: list[RewardPoint] = []
        for share in await shares_of(connection, experiment):
            curve = await self._grown(connection, share)
            points += [msgspec.structs.replace(p, inherited=True) for p in curve] if share.inherited else curve
        return points

    async def _grown(self, connection: AsyncConnection, share: Share) -> list[RewardPoint]:
        """Returns the curve of a share, read from the database only beyond the cached points."""
        newest = await fetch_one(
            connection,
            _Generation,
            "SELECT MAX(generation) AS generation FROM generations WHERE experiment = :experiment",
            experiment=share.experiment.bytes,
        )
        generation = None if newest is None else newest.generation
        key = (share.experiment, share.first, share.last)
        cached = self._cache.get(key)
        # A new generation executes steps again: old points may belong to void batches.
        if cached is None or cached.generation != generation:
            cached = _CachedCurve(generation, share.first - 1, [])
        rows = await _rewards(connection, share.experiment, cached.last + 1, share.last)
        # An experience may reach the tables after the training step.
        whole = next((n for n, row in enumerate(rows) if row.experiences < row.planned), len(rows))
        points = [*cached.points, *_points(rows[:whole])]
        last = rows[whole - 1].step if whole else cached.last
        self._cache.pop(key, None)
        if sum(len(curve.points) for curve in self._cache.values()) + len(points) > KEPT_POINTS:
            self._cache.clear()
        self._cache[key] = _CachedCurve(generation, last, points)
        return [*points, *_points(rows[whole:])]


async def _rewards(connection: AsyncConnection, experiment: UUID, first: int, last: int) -> list[_Rewards]:
    return await fetch(
        connection,
        _Rewards,
        f"""SELECT t.step, t.stage, AVG(e.reward) AS reward_mean, MIN(e.reward) AS reward_min,
            MAX(e.reward) AS reward_max, COUNT(e.reward) AS experiences, COUNT(i.experience) AS planned
        FROM {EXECUTED} t LEFT JOIN batch_items i ON i.batch = t.batch AND i.experience IS NOT NULL
            LEFT JOIN experiences e ON {ITEM}
        WHERE t.experiment = :experiment AND t.step BETWEEN :first AND :last AND {NEWEST}
        GROUP BY t.step, t.stage ORDER BY t.step""",
        experiment=experiment.bytes,
        first=first,
        last=last,
    )


def _points(rows: list[_Rewards]) -> list[RewardPoint]:
    return [
        RewardPoint(
            step=row.step,
            stage=row.stage,
            reward_mean=row.reward_mean,
            reward_min=row.reward_min,
            reward_max=row.reward_max,
            experiences=row.experiences,
        )
        for row in rows
        if row.reward_mean is not None and row.reward_min is not None and row.reward_max is not None
    ]
