# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`RunFigures`: the figures of an experiment in a list, read from few rows, and cached while nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
CLIPPED_STEPS: Final = 4
"""Number of newest steps in the share of clipped tokens."""
CACHED_RUNS: Final = 4_096
"""Maximum number of experiments with cached figures; the cache is emptied when full."""
_UNKNOWN: Final = -1
"""Number of records of an experiment not cached before."""


class HeldOutScore(msgspec.Struct, frozen=True, kw_only=True):
    """The newest score on a held-out taskset, and the change since the first one."""

    score: float
    """Mean reward of the newest evaluation on the taskset."""
    version: int
    """The evaluated weight version."""
    stderr: float | None
    """Standard error of the score; null for a score of one row."""
    change: float | None
    """Difference to the first score; null for the first score itself."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an experiment in a list; None or empty without data."""

    reward_mean: float | None
    """The mean reward of the newest 256 experiences."""
    staleness_p95: int | None
    """95th percentile of staleness, in versions, of the newest recent batch with a recorded staleness."""
    reward_curve: list[float]
    """Mean rewards of at most 24 steps, evenly spaced, the newest last."""
    held_out: dict[str, HeldOutScore]
    """The newest score on each held-out taskset."""
    trainer_idle: float | None
    """Share of the time between the newest steps without training."""
    explorer_idle: float | None
    """Share of the time of the newest 256 rollouts without a rollout under way, as a mean over explorers."""
    clipped: float | None
    """Mean share of clipped tokens in the newest 4 steps."""
    step_s: float | None
    """Seconds between the ends of the newest steps."""


class _RecentRollout(msgspec.Struct, frozen=True):
    """A row of `_ROLLOUTS`: one of the newest experiences with effect of an experiment."""

    worker: str
    """Id of the explorer, as text."""
    reward: float | None
    """Reward of the experience; None without a reward."""
    duration_s: float | None
    """Seconds of the rollout; None if not recorded."""
    produced_ns: int
    """End of the rollout, Unix time in nanoseconds."""


class _RecentStep(msgspec.Struct, frozen=True):
    """A row of `_RECENT`: one of the newest executed steps, with the staleness of its batch."""

    step: int
    """Weight version made by the step."""
    generation: int
    """Generation of the training history at the step."""
    duration_s: float
    """Seconds of training in the step."""
    completed_ns: int
    """End of the step, Unix time in nanoseconds."""
    staleness_p95: int | None
    """95th percentile of the batch's staleness, in versions; None without experiences."""


class _Metrics(msgspec.Struct, frozen=True):
    """A row of `_CURVE`: a step with the metrics reported by the trainer."""

    step: int
    """Weight version made by the step."""
    metrics: dict[str, float | None]
    """Metrics of the step by name; None for a recorded NaN or infinity."""


class _Score(msgspec.Struct, frozen=True):
    """A row of `_SCORES`: an evaluation with its score and further figures."""

    taskset: str
    """Name of the held-out taskset."""
    version: int
    """The evaluated weight version."""
    score: float | None
    """Mean reward of the answers; None without a finite score."""
    metrics: dict[str, float | None]
    """Further figures of the evaluation by name, such as `score/stderr`."""


class _FirstScore(msgspec.Struct, frozen=True):
    """A row of `_FIRST_SCORES`: an evaluation among the earliest by weight version."""

    taskset: str
    """Name of the held-out taskset."""
    version: int
    """The evaluated weight version."""
    score: float | None
    """Mean reward of the answers; None without a finite score."""


_ROLLOUTS: Final = f"""SELECT e.writer AS worker, e.reward, e.duration_s, e.produced_ns FROM experiences e
WHERE e.experiment = :experiment AND {COUNTED} AND e.produced_ns IS NOT NULL
ORDER BY e.produced_ns DESC LIMIT {RECENT_EXPERIENCES}"""
"""SQL of the newest `RECENT_EXPERIENCES` experiences with effect, the newest first."""
_RECENT: Final = f"""SELECT t.step, t.generation, t.duration_s, t.completed_ns, b.staleness_p95
FROM {EXECUTED} t LEFT JOIN batches b ON b.id = t.batch
WHERE t.experiment = :experiment ORDER BY t.step DESC, t.generation DESC LIMIT {RECENT_STEPS}"""
"""SQL of the newest `RECENT_STEPS` executed steps in every generation, the newest first."""
_CURVE: Final = f"""SELECT t.step, t.metrics FROM {EXECUTED} t
WHERE t.experiment = :experiment AND t.step IN ({{steps}}) ORDER BY t.step, t.generation"""
"""SQL of the metrics of chosen executed steps, in order; `{steps}` is a comma-separated list of step numbers."""
_SCORES: Final = """SELECT v.taskset, v.version, v.score, v.metrics FROM evals v WHERE v.experiment = :experiment
ORDER BY v.version DESC, v.completed_ns DESC LIMIT 32"""
"""SQL of the 32 evaluations of the newest weight versions, the newest first."""
_FIRST_SCORES: Final = """SELECT v.taskset, v.version, v.score FROM evals v WHERE v.experiment = :experiment
ORDER BY v.version, v.completed_ns DESC LIMIT 32"""
"""SQL of the 32 evaluations of the oldest weight versions, the oldest first."""


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
    from rftd.streams.figures.step_figures import clipped_of, reward_of  # late: no need of the command line

    key = experiment.bytes
    recent = await fetch(connection, _RecentStep, _RECENT, experiment=key)
    rollouts = await fetch(connection, _RecentRollout, _ROLLOUTS, experiment=key)
    rewards: dict[int, float] = {}
    clipped: dict[int, float] = {}
    if recent:
        spaced = _spaced(recent[0].step)
        newest = [step for step in range(recent[0].step, recent[0].step - CLIPPED_STEPS, -1) if step > 0]
        numbers = sorted({*spaced, *newest})
        marks = ", ".join(str(number) for number in numbers)
        for point in await fetch(connection, _Metrics, _CURVE.format(steps=marks), experiment=key):
            reward = reward_of(point.metrics)
            if reward is not None and point.step in spaced:
                rewards[point.step] = reward  # of several generations the newest counts
            share = clipped_of(point.metrics)
            if share is not None and point.step in newest:
                clipped[point.step] = share
    step_s, idle = _pace([row for row in recent if row.generation == recent[0].generation])
    return RunFigures(
        reward_mean=_mean([row.reward for row in rollouts if row.reward is not None]),
        staleness_p95=next((row.staleness_p95 for row in recent if row.staleness_p95 is not None), None),
        reward_curve=[rewards[step] for step in sorted(rewards)],
        held_out=await _held_out(connection, key),
        trainer_idle=idle,
        explorer_idle=_explorer_idle(rollouts),
        clipped=_mean(list(clipped.values())),
        step_s=step_s,
    )


async def _held_out(connection: AsyncConnection, experiment: bytes) -> dict[str, HeldOutScore]:
    """Returns the newest score on each taskset, with the change since the first one."""
    first: dict[str, _FirstScore] = {}
    for row in await fetch(connection, _FirstScore, _FIRST_SCORES, experiment=experiment):
        if row.score is not None:
            first.setdefault(row.taskset, row)
    scores: dict[str, HeldOutScore] = {}
    for newest in await fetch(connection, _Score, _SCORES, experiment=experiment):
        if newest.score is None or newest.taskset in scores:
            continue
        before = first.get(newest.taskset)
        has_change = before is not None and before.score is not None and before.version != newest.version
        scores[newest.taskset] = HeldOutScore(
            score=newest.score,
            version=newest.version,
            stderr=newest.metrics.get("score/stderr"),
            change=newest.score - (before.score or 0.0) if before is not None and has_change else None,
        )
    return scores


def _explorer_idle(rollouts: Sequence[_RecentRollout]) -> float | None:
    """Returns the share of time without a rollout under way, over explorers with at least two timed rollouts.

    The time of an explorer lasts from the end of the oldest rollout to the end of the newest one.
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    for row in rollouts:
        if row.duration_s:
            spans.setdefault(row.worker, []).append((row.produced_ns - int(row.duration_s * 1e9), row.produced_ns))
    whole_ns = idle_ns = 0
    for worker_spans in spans.values():
        begin_ns = min(end for _, end in worker_spans)
        whole_ns += max(end for _, end in worker_spans) - begin_ns
        for begin, end in sorted(worker_spans):
            idle_ns += max(0, begin - begin_ns)
            begin_ns = max(begin_ns, end)
    return idle_ns / whole_ns if whole_ns > 0 else None


def _mean(figures: Sequence[float]) -> float | None:
    """Returns the arithmetic mean; None for an empty sequence."""
    return sum(figures) / len(figures) if figures else None


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
