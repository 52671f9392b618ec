"""Series: figures of several experiments by step, tokens or time, thinned on the daemon, with the marks of each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Daemon, Real, read
from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.storage.queries.courses import Course
    from rftd.storage.queries.thinning import Grid

MOST_RUNS: Final = 32
"""Maximum number of experiments in one answer."""
MOST_METRICS: Final = 32
"""Maximum number of figures in one answer, each a line per experiment."""
MOST_SERIES_POINTS: Final = 2000
"""Maximum number of points of a line."""
REWARD_BANDS: Final = "reward"
"""Figure of the batches' rewards: its bands are those of the rollouts, not of the steps' means."""
SeriesBasis: TypeAlias = Literal["step", "tokens", "time"]
"""The unit of the positions: training steps, trained tokens, or seconds since the start."""
Columns = list[float | None]
"""Numbers of a line, one per bucket; null in a bucket without a finite figure."""


class SeriesRun(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment of a series: its name, its range, and the figures on offer."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    last_step: int | None
    """The newest trained step; null without a step."""
    started_ns: int
    """Start of the experiment, at which seconds are 0."""
    metrics: list[str]
    """Names of all figures of the experiment."""


class SeriesLine(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one experiment, a number per bucket; null in a bucket without a finite figure."""

    run: str
    """Id of the experiment."""
    metric: str
    """Name of the figure."""
    mean: Columns
    """Mean of the figures in each bucket."""
    min: Columns
    """Lowest figure in each bucket."""
    max: Columns
    """Highest figure in each bucket."""
    p10: Columns
    """10th percentile in each bucket."""
    p50: Columns
    """Median in each bucket."""
    p90: Columns
    """Quantiles of the figures in a bucket; of `reward`, the mean over steps of the rollouts' quantiles."""
    count: list[int]
    """Number of finite figures in each bucket."""
    nonfinite: list[int]
    """Number of figures recorded as NaN or infinity in each bucket."""


class SeriesMark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of one experiment beside the lines."""

    run: str
    """Id of the experiment."""
    change: str
    """`published`, `checkpoint`, `resumed_from`, `worker_lost`, `signal_lost`, `signal_regained`, or a state."""
    at: float
    """Position in the unit of the series."""
    time_ns: int
    """Time of the moment, Unix time in nanoseconds."""
    text: str
    """Details in words."""
    count: int
    """Number of moments of the kind in the bucket, this newest one included."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of several experiments in buckets shared by all lines."""

    by: str
    """Measure on the horizontal axis: `step`, `tokens` or `time`."""
    at: list[float]
    """End of each bucket in steps, tokens or seconds: the last step inside, or the border."""
    runs: list[SeriesRun]
    """Experiments of the answer."""
    lines: list[SeriesLine]
    """Lines, for each figure and experiment."""
    marks: list[SeriesMark]
    """Moments of the experiments."""


@read("/v1/series", Series, tag="history")
async def series(
    daemon: Daemon,
    runs: Annotated[list[str] | None, Meta(description="The experiments, repeated or separated by commas.")] = None,
    metrics: Annotated[
        list[str] | None, Meta(description="The figures, repeated or separated by commas; without any, `reward`.")
    ] = None,
    points: Annotated[int, Meta(ge=1, le=MOST_SERIES_POINTS)] = 300,
    by: SeriesBasis = "step",
    first: Real = None,
    last: Real = None,
    after: After = None,
) -> Series:
    """Figures of steps, evaluations and workers, several experiments at once, thinned to bands, with marks.

    `first` and `last` bound the positions; without them, the range of all experiments.
    """
    names = [name for text in runs or () for name in text.split(",") if name]
    if not 1 <= len(names) <= MOST_RUNS:
        raise UsageError(f"{len(names)} experiments", field="runs", fix=f"name one to {MOST_RUNS} experiments")
    # Late: the command line imports this module, and neither numpy nor the queries behind the lines.
    from rftd.storage.queries.courses import course_of

    async with daemon.read(after) as connection:
        ids = list(dict.fromkeys([await daemon.resolve(connection, name) for name in names]))
        wanted = None if metrics is None else tuple(metrics)
        courses = [await course_of(connection, daemon.columns, id, wanted or (REWARD_BANDS,), by) for id in ids]
    chosen = _chosen(courses, metrics or [REWARD_BANDS])
    return _series(courses, chosen, by, points, first, last)


def _chosen(courses: Sequence[Course], texts: Sequence[str]) -> list[str]:
    """Returns the figures named in a request. Raises UsageError for a figure of no experiment with a step."""
    available = dict.fromkeys(name for course in courses for name in course.names)
    # A reward's author names its parts, so a comma may belong to a name.
    names = [name for text in texts for name in ([text] if text in available else text.split(",")) if name]
    chosen = list(dict.fromkeys(names))
    if len(chosen) > MOST_METRICS:
        raise UsageError(f"{len(chosen)} figures", field="metrics", fix=f"name at most {MOST_METRICS} figures")
    for name in chosen:
        if name not in available and any(len(course.table.step) for course in courses):
            near = difflib.get_close_matches(name, available, n=3)
            fix = f"did you mean {', '.join(near)}?" if near else "see `metrics` of the runs in an answer"
            raise UsageError(f"{name!r} is not a figure of these experiments", field="metrics", fix=fix)
    return chosen


def _series(
    courses: Sequence[Course], metrics: Sequence[str], by: str, points: int, first: float | None, last: float | None
) -> Series:
    """Returns figures of several experiments in shared buckets, with marks merged where too close to tell apart."""
    from rftd.storage.queries.marks import MARK_BUCKETS, merged
    from rftd.storage.queries.thinning import Grid, rounded

    ranges = [(course.at[0], course.at[-1]) for course in courses if len(course.at)]
    low = first if first is not None else min((start for start, _ in ranges), default=0.0)
    high = last if last is not None else max((end for _, end in ranges), default=0.0)
    if high < low:
        raise UsageError(f"from {low:g} to {high:g}", field="last", fix="give a last position after the first")
    whole = by != "time"
    grid = Grid.over(float(low), float(high), points, whole=whole)
    marks = []
    for course in courses:
        inside = [(at, mark) for at, mark in zip(course.mark_positions, course.marks, strict=True) if low <= at <= high]
        # A mark is a line of pixels: as many buckets as can be told apart, however many points the lines have.
        width = (high - low) / MARK_BUCKETS or 1.0
        buckets = [int((at - low) / width) for at, _ in inside]
        for number, mark in merged([mark for _, mark in inside], buckets):
            position = rounded_position(inside[number][0])
            marks.append(
                SeriesMark(
                    run=course.id,
                    change=mark.change,
                    at=position,
                    time_ns=mark.time_ns,
                    text=mark.text,
                    count=mark.count,
                )
            )
    return Series(
        by=by,
        at=[at for at in rounded(grid.ends(), digits=12) if at is not None] if ranges else [],
        runs=[
            SeriesRun(
                id=course.id,
                name=course.name,
                last_step=int(course.table.step[-1]) if len(course.table.step) else None,
                started_ns=course.started_ns,
                metrics=course.names,
            )
            for course in courses
        ],
        lines=[_line(course, metric, grid) for metric in metrics for course in courses if ranges],
        marks=marks,
    )


def rounded_position(at: float) -> float:
    """Returns a position to the millisecond, or a whole step or token."""
    return round(float(at), 3)


def _line(course: Course, metric: str, grid: Grid) -> SeriesLine:
    """Returns the thinned line of one figure; without the figure, a line of nulls."""
    from rftd.storage.queries.thinning import rounded

    bands = course.bands(metric, grid)
    low, middle, high = bands.quantiles
    return SeriesLine(
        run=course.id,
        metric=metric,
        mean=rounded(bands.mean),
        min=rounded(bands.low),
        max=rounded(bands.high),
        p10=rounded(low),
        p50=rounded(middle),
        p90=rounded(high),
        count=bands.finite.tolist(),
        nonfinite=bands.nonfinite.tolist(),
    )
