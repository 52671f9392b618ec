# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`RewardCurves`: the rewards of each trained step, remembered, since those of a batch do not change any more."""

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
"""The points of all curves that are remembered; with more, all are forgotten and read again."""


class RewardPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards that one step was trained on."""

    step: int
    stage: int
    reward_mean: float
    reward_min: float
    reward_max: float
    experiences: int
    inherited: bool = False
    """True if an experiment that this is a fork of made it."""


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


class _Known(NamedTuple):
    """The beginning of a curve: no step up to `last` changes in this generation of the history."""

    generation: int | None
    last: int
    points: list[RewardPoint]


class RewardCurves:
    """Curves of some experiments, read once and then only from where they grew."""

    def __init__(self) -> None:
        self._known: dict[tuple[UUID, int, int], _Known] = {}

    async def of(self, connection: AsyncConnection, experiment: UUID) -> list[RewardPoint]:
        """The rewards of each trained step's batch; steps on dataset rows have none."""
        points: list[RewardPoint] = []
        for share in await shares_of(connection, experiment):
            known = await self._grown(connection, share)
            points += [msgspec.structs.replace(p, inherited=True) for p in known] if share.inherited else known
        return points

    async def _grown(self, connection: AsyncConnection, share: Share) -> list[RewardPoint]:
        newest = await fetch_one(
            connection,
            _Generation,
            "SELECT MAX(generation) AS generation FROM generations WHERE experiment = :experiment",
            experiment=share.experiment.bytes,
        )
        generation = None if newest is None else newest.generation
        place = (share.experiment, share.first, share.last)
        known = self._known.get(place)
        # A new generation executes steps again: the points of old ones may be of batches that count no more.
        if known is None or known.generation != generation:
            known = _Known(generation, share.first - 1, [])
        rows = await _rewards(connection, share.experiment, known.last + 1, share.last)
        # An experience may come into the tables after the step that it was trained in.
        whole = next((n for n, row in enumerate(rows) if row.experiences < row.planned), len(rows))
        points = [*known.points, *_points(rows[:whole])]
        last = rows[whole - 1].step if whole else known.last
        self._known.pop(place, None)
        if sum(len(each.points) for each in self._known.values()) + len(points) > KEPT_POINTS:
            self._known.clear()
        self._known[place] = _Known(generation, last, points)
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
