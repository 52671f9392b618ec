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
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from sqlalchemy.ext.asyncio import AsyncConnection

KEPT_POINTS: Final = 100_000
"""Maximum cached points of all curves; beyond it, the whole cache is dropped and read again."""


class RewardPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of the batch trained in a step."""

    step: int
    """Weight version made by the step; of a point merged from neighbours, the last version."""
    stage: int
    """Number of the stage."""
    reward_mean: float
    """Mean reward of the batch's experiences."""
    reward_min: float
    """Lowest reward of the batch's experiences."""
    reward_max: float
    """Highest reward of the batch's experiences."""
    experiences: int
    """Number of experiences with a reward."""
    inherited: bool = False
    """True if the step was made by an ancestor of this fork."""


class _Rewards(msgspec.Struct, frozen=True):
    """A row of rewards in one executed step, null where no experience has reached the tables."""

    step: int
    """Weight version made by the step."""
    stage: int
    """Number of the stage."""
    reward_mean: float | None
    """Mean reward of the batch's experiences."""
    reward_min: float | None
    """Lowest reward of the batch's experiences."""
    reward_max: float | None
    """Highest reward of the batch's experiences."""
    experiences: int
    """Number of the batch's experiences with a reward in the tables."""
    planned: int
    """Items of the batch that are experiences."""


class _Generation(msgspec.Struct, frozen=True):
    """A row with the newest generation of an experiment's history."""

    generation: int | None
    """The newest generation; None before the first trainer started."""


class _CurveColumns(NamedTuple):
    """The points of a curve as columns of equal length, in the order of the fields of `RewardPoint`."""

    step: NDArray[np.int64]
    """Step numbers, ascending."""
    stage: NDArray[np.int64]
    """Number of the stage at each point."""
    reward_mean: NDArray[np.float64]
    """Mean reward at each point."""
    reward_min: NDArray[np.float64]
    """Lowest reward at each point."""
    reward_max: NDArray[np.float64]
    """Highest reward at each point."""
    experiences: NDArray[np.int64]
    """Number of experiences with a reward at each point."""
    inherited: NDArray[np.bool_]
    """True at points made by an ancestor of a fork."""

    def points(self) -> list[RewardPoint]:
        """Returns the points as structs, in the order of the columns."""
        rows = zip(*(column.tolist() for column in self), strict=True)
        return [
            RewardPoint(
                step=step,
                stage=stage,
                reward_mean=mean,
                reward_min=low,
                reward_max=high,
                experiences=experiences,
                inherited=inherited,
            )
            for step, stage, mean, low, high, experiences, inherited in rows
        ]

    def merged(self, most: int) -> _CurveColumns:
        """Returns at most `most` points, each the mean of neighbours, weighted by experiences.

        A point with both inherited and own steps counts as own.
        """
        import numpy as np  # late: the command line imports `RewardPoint`, and no numpy

        # Rounded up: with the quotient rounded down, a curve of 399 points would be drawn in 399.
        size = -(-len(self.step) // most)
        if size <= 1:
            return self
        firsts = np.arange(0, len(self.step), size)
        lasts = np.append(firsts[1:], len(self.step)) - 1
        # Weighted by experiences: the mean of the means would give a small last batch the weight of a full one.
        experiences = np.add.reduceat(self.experiences, firsts)
        return _CurveColumns(
            step=self.step[lasts],
            stage=self.stage[lasts],
            reward_mean=np.add.reduceat(self.reward_mean * self.experiences, firsts) / experiences,
            reward_min=np.minimum.reduceat(self.reward_min, firsts),
            reward_max=np.maximum.reduceat(self.reward_max, firsts),
            experiences=experiences,
            inherited=self.inherited[lasts],
        )


class _CachedCurve(NamedTuple):
    """The stable beginning of a curve: no step up to `last` changes in the given generation of the history."""

    generation: int | None
    """Generation of the history at the time of reading; a newer one invalidates the curve."""
    last: int
    """The last cached step; reading continues with the step after."""
    columns: _CurveColumns
    """Points up to `last`, with the rewards of every planned experience."""


class RewardCurves:
    """Curves of some experiments, read once and then only beyond the cached points."""

    def __init__(self) -> None:
        self._cache: dict[tuple[UUID, int, int], _CachedCurve] = {}

    async def of(self, connection: AsyncConnection, experiment: UUID, *, most: int | None = None) -> list[RewardPoint]:
        """Returns the rewards of each trained step's batch, in at most `most` points; steps on dataset rows have none.

        Of a longer curve, neighbours are averaged.
        """
        curves = [await self._grown(connection, share) for share in await shares_of(connection, experiment)]
        columns = _joined(curves)
        return (columns if most is None else columns.merged(most)).points()

    async def _grown(self, connection: AsyncConnection, share: Share) -> _CurveColumns:
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
            cached = _CachedCurve(generation, share.first - 1, _columns([], share))
        rows = await _rewards(connection, share.experiment, cached.last + 1, share.last)
        # An experience may reach the tables after the training step.
        whole = next((n for n, row in enumerate(rows) if row.experiences < row.planned), len(rows))
        stable = _joined([cached.columns, _columns(rows[:whole], share)]) if whole else cached.columns
        last = rows[whole - 1].step if whole else cached.last
        self._cache.pop(key, None)
        if sum(len(curve.columns.step) for curve in self._cache.values()) + len(stable.step) > KEPT_POINTS:
            self._cache.clear()
        self._cache[key] = _CachedCurve(generation, last, stable)
        return _joined([stable, _columns(rows[whole:], share)]) if rows[whole:] else stable


def _joined(curves: Sequence[_CurveColumns]) -> _CurveColumns:
    """Returns curves one after the other."""
    import numpy as np  # late, as in `merged`

    return curves[0] if len(curves) == 1 else _CurveColumns(*map(np.concatenate, zip(*curves, strict=True)))


def _columns(rows: list[_Rewards], share: Share) -> _CurveColumns:
    """Returns the rows with rewards as columns."""
    import numpy as np  # late, as in `merged`

    rewarded = [row for row in rows if row.reward_mean is not None]
    return _CurveColumns(
        step=np.array([row.step for row in rewarded], np.int64),
        stage=np.array([row.stage for row in rewarded], np.int64),
        reward_mean=np.array([row.reward_mean for row in rewarded], np.float64),
        reward_min=np.array([row.reward_min for row in rewarded], np.float64),
        reward_max=np.array([row.reward_max for row in rewarded], np.float64),
        experiences=np.array([row.experiences for row in rewarded], np.int64),
        inherited=np.full(len(rewarded), share.inherited),
    )


async def _rewards(connection: AsyncConnection, experiment: UUID, first: int, last: int) -> list[_Rewards]:
    """Returns the rewards of the executed steps in a range, each in the newest generation, in order."""
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
