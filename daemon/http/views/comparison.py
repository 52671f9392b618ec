"""Experiments side by side: the figures of each after equal numbers of steps, trained tokens or seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Daemon, read
from rftd.ops.errors import UsageError
from rftd.storage.queries.experiments import ExperimentSummary, get_summary
from rftd.storage.queries.steps import EvalRow, StepTotal, list_evals, list_steps, step_totals

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.ext.asyncio import AsyncConnection

MOST_COMPARED: Final = 32
"""Maximum number of experiments in one comparison."""
MOST_POINTS: Final = 100
"""Maximum number of points of a comparison."""
REWARD: Final = "reward_mean"
"""Name of the figure of the mean reward."""
HELD_OUT: Final = "held-out/"
"""Prefix of a figure's name for the score of a held-out taskset."""
Basis: TypeAlias = Literal["steps", "tokens", "time"]
"""The measure equal for all experiments."""


class ComparedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment at one point: its newest step trained by then."""

    step: int
    """Number of steps trained by then."""
    tokens: int
    """Number of tokens trained by then."""
    time_s: float
    """Seconds since the experiment was started."""
    figures: dict[str, float | None]
    """Figures of the step by name, and the newest score of each held-out taskset."""


class ComparedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All experiments at an equal number of steps, tokens or seconds."""

    at: float
    """Number of steps, tokens or seconds."""
    standings: list[ComparedStep | None]
    """One per experiment; null for an experiment without a trained step by then."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Experiments at equal steps, tokens or time, up to what all of them have reached."""

    by: str
    """Measure that is equal for all experiments at a point."""
    items: list[ExperimentSummary]
    """The experiments, in the requested order."""
    points: list[ComparedPoint]
    """The points; empty if an experiment has trained no step."""


class _Course(msgspec.Struct, frozen=True):
    """Steps and evaluations of one experiment so far."""

    id: UUID
    """Id of the experiment."""
    summary: ExperimentSummary
    """State, progress and recent figures of the experiment."""
    totals: list[StepTotal]
    """Steps in order, with tokens trained until each."""
    evals: list[EvalRow]
    """Evaluations, in the order of weight versions."""

    def time_s(self, total: StepTotal) -> float:
        """Returns the seconds between the start and the end of a step; a fork's shared steps took none of its own."""
        began_ns = self.summary.started_ns or self.summary.submitted_ns
        return max(0.0, (total.completed_ns - began_ns) / 1e9)


@read("/v1/comparison", Comparison, tag="experiments")
async def comparison(
    daemon: Daemon,
    name: Annotated[list[str] | None, Meta(description="The experiments: two or more, repeated.")] = None,
    by: Basis = "steps",
    points: Annotated[int, Meta(ge=1, le=MOST_POINTS)] = 5,
    after: After = None,
) -> Comparison:
    """Experiments side by side after equal numbers of steps, trained tokens or seconds, as far as all have come."""
    async with daemon.read(after) as connection:
        ids = await different_experiments(daemon, connection, name or [])
        courses = [await _course(connection, id) for id in ids]
        compared = [
            ComparedPoint(at=at, standings=[await _standing(connection, course, by, at) for course in courses])
            for at in _grid(courses, by, points)
        ]
    return Comparison(by=by, items=[course.summary for course in courses], points=compared)


async def different_experiments(daemon: Daemon, connection: AsyncConnection, names: Sequence[str]) -> list[UUID]:
    """Returns the experiments with these names. Raises UsageError unless they are two or more, each named once."""
    if not 2 <= len(names) <= MOST_COMPARED:
        fix = f"name two to {MOST_COMPARED} experiments"
        what = "one experiment is no comparison" if len(names) == 1 else f"{len(names)} experiments are no comparison"
        raise UsageError(what, field="name", fix=fix)
    ids = [await daemon.resolve(connection, name) for name in names]
    twice = next((name for name, id in zip(names, ids, strict=True) if ids.count(id) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice!r} is named twice", field="name", fix="name different experiments")
    return ids


async def _course(connection: AsyncConnection, experiment: UUID) -> _Course:
    """Reads the steps and evaluations of one experiment."""
    return _Course(
        id=experiment,
        summary=await get_summary(connection, experiment),
        totals=await step_totals(connection, experiment),
        evals=await list_evals(connection, experiment),
    )


def _measure(course: _Course, by: Basis) -> Callable[[StepTotal], float]:
    """Returns the function from a step's totals to the position on the axis of the comparison."""
    if by == "time":
        return course.time_s
    return (lambda total: total.step) if by == "steps" else (lambda total: total.tokens)


def _grid(courses: Sequence[_Course], by: Basis, points: int) -> list[float]:
    """Returns points at equal distances up to the last one reached by every experiment, without duplicates."""
    if not all(course.totals for course in courses):
        return []
    end = min(_measure(course, by)(course.totals[-1]) for course in courses)
    grid = [end * number / points for number in range(1, points + 1)]
    if by != "time":
        grid = [float(int(at)) for at in grid]
    return sorted({at for at in grid if at > 0})


async def _standing(connection: AsyncConnection, course: _Course, by: Basis, at: float) -> ComparedStep | None:
    """Returns the experiment at a point; None before its first step."""
    reached = bisect_right(course.totals, at, key=_measure(course, by))
    if not reached:
        return None
    total = course.totals[reached - 1]
    [row] = await list_steps(connection, course.id, first_step=total.step, last_step=total.step, limit=1)
    figures = {**row.metrics, REWARD: row.reward_mean}
    for scored in course.evals:  # in the order of versions, so that the newest score remains
        if scored.version <= total.step:
            figures[f"{HELD_OUT}{scored.taskset}"] = scored.score
    return ComparedStep(step=total.step, tokens=total.tokens, time_s=course.time_s(total), figures=figures)
