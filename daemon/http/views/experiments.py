"""Experiments: the list, one line, the complete page of one experiment, and its roles' waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.budgets import BudgetRow
from rftd.daemon.http.views.memory import MemoryRow, with_peaks
from rftd.daemon.http.views.moment import ENDED, Moment, moment_of
from rftd.daemon.http.views.route import After, Cursor, Daemon, Limit, Name, Real, Word, read
from rftd.daemon.http.views.trackers import TrackerRow
from rftd.daemon.run.why.wait import Wait, Why, worst_first
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.storage.queries.books import Books
from rftd.storage.queries.curve import RewardCurves, RewardPoint
from rftd.storage.queries.experiments import (
    ExperimentDetail,
    ExperimentFilter,
    ExperimentSummary,
    StageRow,
    get_experiment,
    get_summary,
    list_experiments,
)
from rftd.storage.queries.signal import SignalRow, signal_of
from rftd.storage.queries.steps import EvalRow, list_evals
from rftd.storage.queries.weights import (
    CheckpointRow,
    OverdueRow,
    WeightRow,
    WorkerRow,
    list_checkpoints,
    list_overdue,
    list_weights,
    list_workers,
    memory_peaks,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.streams.folds.spine import Status


CURVE_POINTS: Final = 200
"""Maximum number of points of a curve on a page; of a longer curve, neighbours are averaged."""
NEWEST: Final = 8
"""Number of weight versions and checkpoints on a page."""
SHOWN_WORKERS: Final = 32
SHOWN_EVALS: Final = 100


RunOrder = Literal["newest", "oldest", "name", "project", "state", "reward", "-reward"]
"""Order of the list; a name with a minus sign sorts from the highest down."""


class ExperimentList(msgspec.Struct, frozen=True, kw_only=True):
    """Some experiments in order, with the cursor of the next page."""

    items: list[ExperimentSummary]
    next: str | None
    """`cursor` of the next page; null at the end."""


class ExperimentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything shown on the page of one experiment, read within one transaction."""

    experiment: ExperimentDetail
    reward_curve: list[RewardPoint]
    """The curve in at most 200 points; neighbours are averaged."""
    evals: list[EvalRow]
    weights: list[WeightRow]
    """The newest weight versions."""
    overdue: list[OverdueRow]
    """The newest windows with explorers waiting longer than `sync_timeout`."""
    overdue_windows: int
    """Number of such windows in all."""
    checkpoints: list[CheckpointRow]
    """The newest existing checkpoints, and older ones kept for their evaluation."""
    workers: list[WorkerRow]
    """The newest workers."""
    signal: SignalRow | None
    """Learning signal of the newest batches, with the reason for its absence."""
    waiting: str | None
    """Reason for the lack of progress before the end: the log takes no appends; else the workers opening their engines,
    with their start times.
    """
    memory: list[MemoryRow]
    """Expected memory of workers on their devices, as of the experiment's acceptance."""
    trackers: list[TrackerRow]
    """Trackers following the experiment to show its figures elsewhere."""
    budgets: list[BudgetRow]
    """Budgets in `limits`: the amount spent of each, and the time of the pause for it."""
    moment: Moment | None = None
    """The present work, progress, pace and remaining time; null on a page read without a daemon."""


@read("/v1/experiments", ExperimentList, tag="experiments")
async def listed(
    daemon: Daemon,
    state: Annotated[list[Status] | None, Meta(description="Only those in one of these states.")] = None,
    label: Annotated[list[str] | None, Meta(description="Only those with each of these: KEY=VALUE, or KEY.")] = None,
    project: Word = None,
    words: Word = None,
    signal: Annotated[
        Literal["lost", "present"] | None, Meta(description="Only those without, or with, a learning signal.")
    ] = None,
    min_reward: Real = None,
    max_reward: Real = None,
    removed: Annotated[bool, Meta(description="Also those that were removed.")] = False,
    order: RunOrder = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> ExperimentList:
    """Experiments in the order asked for, filtered; rewards are those of the newest trained batch."""
    where = ExperimentFilter(
        states=tuple(status.value for status in state or ()),
        labels=tuple(label or ()),
        project=project,
        words=words,
        signal=signal,
        min_reward=min_reward,
        max_reward=max_reward,
        removed=removed,
    )
    async with daemon.read(after) as connection:
        page = await list_experiments(
            connection,
            where=where,
            order=order,
            limit=limit,
            cursor=cursor,
            figures=lambda id: daemon.figures(connection, id),
        )
    return ExperimentList(items=page.items, next=page.next)


@read("/v1/experiments/{name}", ExperimentPage, tag="experiments")
async def one(daemon: Daemon, name: Name, after: After = None) -> ExperimentPage:
    """The complete page of one experiment, by its name, `name@2`, its id or a unique beginning of its id."""
    async with daemon.read(after) as connection:
        id = await daemon.resolve(connection, name)
        page = await page_of(
            connection,
            id,
            daemon.curves,
            daemon.waiting(id),
            memory=daemon.memory(id),
            trackers=await daemon.trackers(id),
            budgets=await daemon.budgets(connection, id),
        )
        return await with_moment(daemon, connection, page)


async def with_moment(daemon: Daemon, connection: AsyncConnection, page: ExperimentPage) -> ExperimentPage:
    """Returns the page with the present moment of its experiment."""
    detail = page.experiment
    now = await moment_of(
        daemon, connection, UUID(detail.summary.id), detail.summary, stages=detail.stages, memory=page.memory
    )
    return msgspec.structs.replace(page, moment=now)


@read("/v1/experiments/{name}/summary", ExperimentSummary, tag="experiments")
async def summary(daemon: Daemon, name: Name, after: After = None) -> ExperimentSummary:
    """One line of the list of experiments, for clients polling an experiment's progress without needing its page."""
    async with daemon.read(after) as connection:
        return await get_summary(connection, await daemon.resolve(connection, name))


async def page_of(
    connection: AsyncConnection,
    experiment: UUID,
    curves: RewardCurves,
    waiting: str | None = None,
    *,
    books: Books | None = None,
    memory: Sequence[MemoryRow] = (),
    trackers: Sequence[TrackerRow] = (),
    budgets: Sequence[BudgetRow] = (),
) -> ExperimentPage:
    """Returns the page of one experiment, with `books` instead of new ones, if passed. Raises NotFoundError."""
    # All on one connection, within one transaction: a page never mixes two states of the tables.
    checkpoints = await list_checkpoints(connection, experiment)
    detail = await get_experiment(connection, experiment, books)
    overdue = await list_overdue(connection, experiment)
    return ExperimentPage(
        experiment=detail,
        reward_curve=thinned(await curves.of(connection, experiment)),
        evals=(await list_evals(connection, experiment))[-SHOWN_EVALS:],
        weights=await list_weights(connection, experiment, newest=NEWEST),
        overdue=overdue[-NEWEST:],
        overdue_windows=len(overdue),
        checkpoints=_shown(checkpoints, detail.stages),
        workers=(await list_workers(connection, experiment))[-SHOWN_WORKERS:],
        signal=await signal_of(connection, experiment),
        waiting=None if detail.summary.state in ENDED else waiting,
        memory=with_peaks(memory, await memory_peaks(connection, experiment)) if memory else [],
        trackers=list(trackers),
        budgets=list(budgets),
    )


def _shown(checkpoints: Sequence[CheckpointRow], stages: Sequence[StageRow]) -> list[CheckpointRow]:
    """Returns the newest checkpoints, preceded by older ones kept for their evaluation."""
    present = [row for row in checkpoints if row.deleted_reason is None]
    best_versions = {version for stage in stages for version in stage.best_kept}
    return [row for row in present[:-NEWEST] if row.step in best_versions] + present[-NEWEST:]


def thinned(points: list[RewardPoint], most: int = CURVE_POINTS) -> list[RewardPoint]:
    """Returns the curve in at most `most` points, each the mean of neighbours, weighted by experiences.

    A point with both inherited and own steps counts as own.
    """
    # Rounded up: with the quotient rounded down, a curve of 399 points would be drawn in 399.
    size = -(-len(points) // most)
    return points if size <= 1 else [_merged(points[i : i + size]) for i in range(0, len(points), size)]


def _merged(points: list[RewardPoint]) -> RewardPoint:
    # Weighted by experiences: the mean of the means would give a small last batch the weight of a full one.
    count = sum(point.experiences for point in points)
    return RewardPoint(
        step=points[-1].step,
        stage=points[-1].stage,
        reward_mean=sum(point.reward_mean * point.experiences for point in points) / count,
        reward_min=min(point.reward_min for point in points),
        reward_max=max(point.reward_max for point in points),
        experiences=count,
        inherited=points[-1].inherited,
    )


class WhyNow(Why, frozen=True, kw_only=True):
    """The waits of every role, with the present moment of the experiment."""

    moment: Moment | None
    """The present work, progress, pace and remaining time; null while the tables do not answer."""


@read("/v1/experiments/{name}/why", WhyNow, tag="experiments")
async def why(daemon: Daemon, name: Name, after: After = None) -> WhyNow:
    """Each role's work or wait, since when, for whom, and the event ending the wait; worst first."""
    experiment = await daemon.find(name, after)
    answer = await daemon.operations.why(experiment)
    answer = msgspec.structs.replace(answer, waits=worst_first([*answer.waits, *daemon.strangers(experiment)]))
    return why_now(answer, await _moment_if_read(daemon, experiment, answer.waits))


def why_now(answer: Why, moment: Moment | None) -> WhyNow:
    """Returns the waits with a moment; None for an answer from the log alone."""
    fields = {field: getattr(answer, field) for field in Why.__struct_fields__}
    return WhyNow(**fields, moment=moment)


async def _moment_if_read(daemon: Daemon, experiment: UUID, waits: Sequence[Wait]) -> Moment | None:
    """Returns the moment of an experiment; None while the tables do not answer."""
    from sqlalchemy.exc import DBAPIError, TimeoutError

    try:
        async with daemon.read() as connection:
            present = await get_summary(connection, experiment)
            return await moment_of(daemon, connection, experiment, present, waits=waits)
    except (DBAPIError, TimeoutError, OSError, UnreachableError, NotFoundError):
        # Who asks for the reason of a standstill needs the waits just then.
        return None
