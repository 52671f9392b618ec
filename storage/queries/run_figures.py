# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`RunFigures`: the figures of an experiment in a list, read from few rows, and cached while nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import COUNTED
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

RECENT_EXPERIENCES: Final = 256
"""Number of newest experiences in an experiment's mean reward."""
RECENT_STEPS: Final = 20
"""Number of newest steps in pace and idle share: more would include an old stage or an old machine."""
CURVE_POINTS: Final = 24
"""Maximum number of points in the small curve of a list."""
CACHED_RUNS: Final = 4_096
_UNKNOWN: Final = -1
"""Number of records of an experiment not cached before."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an experiment in a list; None or empty without data."""

    reward_mean: float | None
    """The mean reward of the newest 256 experiences."""
    staleness_p95: int | None
    reward_curve: list[float]
    """Mean rewards of at most 24 steps, evenly spaced, the newest last."""
    held_out: dict[str, float]
    """The newest score on each held-out taskset."""
    trainer_idle: float | None
    """Share of the time between the newest steps without training."""
    step_s: float | None
    """Seconds between the ends of the newest steps."""


class _Mean(msgspec.Struct, frozen=True):
    mean: float | None


class _RecentStep(msgspec.Struct, frozen=True):
    step: int
    generation: int
    duration_s: float
    completed_ns: int
    staleness_p95: int | None


class _Metrics(msgspec.Struct, frozen=True):
    step: int
    metrics: dict[str, float | None]


class _Score(msgspec.Struct, frozen=True):
    taskset: str
    score: float | None


_MEAN: Final = f"""SELECT AVG(r.reward) AS mean FROM (SELECT e.reward FROM experiences e
    WHERE e.experiment = :experiment AND {COUNTED} AND e.produced_ns IS NOT NULL
    ORDER BY e.produced_ns DESC LIMIT {RECENT_EXPERIENCES}) r"""
_RECENT: Final = f"""SELECT t.step, t.generation, t.duration_s, t.completed_ns, b.staleness_p95
FROM {EXECUTED} t LEFT JOIN batches b ON b.id = t.batch
WHERE t.experiment = :experiment ORDER BY t.step DESC, t.generation DESC LIMIT {RECENT_STEPS}"""
_CURVE: Final = f"""SELECT t.step, t.metrics FROM {EXECUTED} t
WHERE t.experiment = :experiment AND t.step IN ({{steps}}) ORDER BY t.step, t.generation"""
_SCORES: Final = """SELECT v.taskset, v.score FROM evals v WHERE v.experiment = :experiment
ORDER BY v.version DESC, v.completed_ns DESC LIMIT 32"""


class FiguresCache:
    """Figures of experiments, read again only after new records."""

    def __init__(self) -> None:
        self._cache: dict[UUID, tuple[int, RunFigures]] = {}

    def counts(self, applied: Callable[[UUID], int]) -> dict[UUID, int]:
        """Returns the present number of applied records of each cached experiment, for `of`.

        To be called before the tables are opened: later records must not make earlier figures look new.
        """
        return {experiment: applied(experiment) for experiment in self._cache}

    async def of(self, connection: AsyncConnection, experiment: UUID, *, counts: Mapping[UUID, int]) -> RunFigures:
        """Returns the figures, from memory if they were read after equally many records."""
        records = counts.get(experiment, _UNKNOWN)
        cached = self._cache.get(experiment)
        if cached is not None and cached[0] == records != _UNKNOWN:
            return cached[1]
        figures = await figures_of(connection, experiment)
        if len(self._cache) >= CACHED_RUNS:
            self._cache.clear()
        self._cache[experiment] = records, figures
        return figures


async def figures_of(connection: AsyncConnection, experiment: UUID) -> RunFigures:
    """Returns the figures of an experiment, from the newest rows and a few steps in between."""
    from rftd.streams.figures.step_figures import reward_of  # late: the command line needs only `RunFigures`

    key = experiment.bytes
    recent = await fetch(connection, _RecentStep, _RECENT, experiment=key)
    mean = await fetch(connection, _Mean, _MEAN, experiment=key)
    scores: dict[str, float] = {}
    for row in await fetch(connection, _Score, _SCORES, experiment=key):
        if row.score is not None:
            scores.setdefault(row.taskset, row.score)
    rewards: dict[int, float] = {}
    if recent:
        numbers = _spaced(recent[0].step)
        marks = ", ".join(str(number) for number in numbers)
        for point in await fetch(connection, _Metrics, _CURVE.format(steps=marks), experiment=key):
            reward = reward_of(point.metrics)
            if reward is not None:
                rewards[point.step] = reward  # of several generations the newest counts
    step_s, idle = _pace([row for row in recent if row.generation == recent[0].generation])
    return RunFigures(
        reward_mean=mean[0].mean if mean else None,
        staleness_p95=next((row.staleness_p95 for row in recent if row.staleness_p95 is not None), None),
        reward_curve=[rewards[step] for step in sorted(rewards)],
        held_out=scores,
        trainer_idle=idle,
        step_s=step_s,
    )


def _spaced(last: int) -> list[int]:
    """Returns at most `CURVE_POINTS` steps from 1 to `last`, evenly spaced, with the last one."""
    count = min(last, CURVE_POINTS)
    return sorted({last - (last - 1) * number // max(1, count - 1) for number in range(count)} | {last})


def _pace(recent: list[_RecentStep]) -> tuple[float | None, float | None]:
    """Returns the seconds of a step, and the share of them without training; None with fewer than two steps."""
    steps = len(recent) - 1
    span_s = (recent[0].completed_ns - recent[-1].completed_ns) / 1e9 if steps > 0 else 0.0
    if span_s <= 0:
        return None, None
    trained_s = sum(row.duration_s for row in recent[:-1])
    return span_s / steps, min(1.0, max(0.0, 1.0 - trained_s / span_s))
