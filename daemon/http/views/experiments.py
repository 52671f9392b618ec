"""Experiments: the list, one line, the complete page of one experiment, and its roles' waits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.budgets import BudgetRow
from rftd.daemon.http.views.memory import MemoryRow, with_peaks
from rftd.daemon.http.views.moment import ENDED, Moment, last_moment, moment_of
from rftd.daemon.http.views.route import (
    After,
    Cursor,
    Daemon,
    Limit,
    Name,
    Real,
    Time,
    Word,
    read,
    time_of,
)
from rftd.daemon.http.views.trackers import TrackerRow
from rftd.daemon.run.why.wait import Wait, Why, worst_first
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.storage.queries.books import Books
from rftd.storage.queries.curve import RewardCurves, RewardPoint
from rftd.storage.queries.experiments import (
    ExperimentDetail,
    ExperimentFilter,
    ExperimentSummary,
    count_states,
    get_experiment,
    get_summary,
    list_experiments,
)
from rftd.storage.queries.shares import shares_of
from rftd.storage.queries.signal import SignalRow, signal_of
from rftd.storage.queries.steps import EvalRow, list_evals
from rftd.storage.queries.weights import (
    CheckpointRow,
    OverdueRow,
    WeightRow,
    WorkerRow,
    count_overdue,
    existing_checkpoints,
    list_overdue,
    list_weights,
    list_workers,
    memory_peaks,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.daemon.http.views.ended_pages import EndedPages
    from rftd.streams.folds.spine import Status

CURVE_POINTS: Final = 200
"""Maximum number of points of a curve on a page; of a longer curve, neighbours are averaged."""
NEWEST: Final = 8
"""Number of weight versions and checkpoints on a page."""
SHOWN_WORKERS: Final = 32
"""Maximum number of workers on the page of an experiment."""
SHOWN_EVALS: Final = 100
"""Maximum number of evaluations on the page of an experiment."""


RunOrder = Literal["newest", "oldest", "name", "project", "state", "reward", "-reward"]
"""Order of the list; a name with a minus sign sorts from the highest down."""


class ExperimentList(msgspec.Struct, frozen=True, kw_only=True):
    """Some experiments in order, with the cursor of the next page."""

    items: list[ExperimentSummary]
    """Experiments of the page, in order."""
    next: str | None
    """`cursor` of the next page; null at the end."""
    states: dict[str, int] = {}
    """Numbers of all experiments by state, whatever the filter; without removed ones."""


class ExperimentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything shown on the page of one experiment, read within one transaction."""

    experiment: ExperimentDetail
    """State, progress and settings of the experiment."""
    reward_curve: list[RewardPoint]
    """The curve in at most 200 points; neighbours are averaged."""
    evals: list[EvalRow]
    """The newest evaluations of the experiment, at most 100."""
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
    since: Time = None,
    until: Time = None,
    removed: Annotated[bool, Meta(description="Also those that were removed.")] = False,
    order: RunOrder = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> ExperimentList:
    """Experiments in an order, filtered; rewards are those of the newest trained batch, `since` and `until` bound the
    time of submission.
    """
    where = ExperimentFilter(
        states=tuple(status.value for status in state or ()),
        labels=tuple(label or ()),
        project=project,
        words=words,
        signal=signal,
        min_reward=min_reward,
        max_reward=max_reward,
        since_ns=time_of(since, "since"),
        until_ns=time_of(until, "until"),
        removed=removed,
    )
    figures = daemon.figures()
    async with daemon.read(after) as connection:
        page = await list_experiments(
            connection, where=where, order=order, limit=limit, cursor=cursor, figures=partial(figures, connection)
        )
        states = await count_states(connection)
    return ExperimentList(items=page.items, next=page.next, states=states)


class PageCachingDaemon(Daemon, Protocol):
    """The daemon from the perspective of the page of one experiment."""

    @property
    def pages(self) -> EndedPages[ExperimentPage]:
        """Pages of ended experiments, cached."""
        ...


@read("/v1/experiments/{name}", ExperimentPage, tag="experiments")
async def one(daemon: PageCachingDaemon, name: Name, after: After = None) -> ExperimentPage:
    """The complete page of one experiment, by its name, `name@2`, its id or a unique beginning of its id."""
    history: list[UUID] = []
    async with daemon.read(after) as connection:
        id = await daemon.resolve(connection, name)
        cached_page = daemon.pages.of(id, daemon.applied_of)
        page = cached_page or await _present(daemon, connection, id)
        if cached_page is None and page.experiment.summary.state in ENDED:
            history = [share.experiment for share in await shares_of(connection, id)]
    if cached_page is not None:
        return await _renewed(daemon, id, cached_page)
    if history:
        # Read again, after the records were counted: a page without the newest counted records would be cached.
        counts = {experiment: daemon.applied_of(experiment) for experiment in history}
        async with daemon.read() as connection:
            page = await _present(daemon, connection, id)
        if page.experiment.summary.state in ENDED:
            daemon.pages.keep(id, page, counts)
    return page


async def _present(daemon: Daemon, connection: AsyncConnection, experiment: UUID) -> ExperimentPage:
    """Reads the page of an experiment, with the present moment."""
    page = await page_of(
        connection,
        experiment,
        daemon.curves,
        daemon.waiting(experiment),
        memory=daemon.memory(experiment),
        trackers=await daemon.trackers(experiment),
        budgets=await daemon.budgets(connection, experiment),
    )
    return await with_moment(daemon, connection, page)


async def _renewed(daemon: PageCachingDaemon, experiment: UUID, page: ExperimentPage) -> ExperimentPage:
    """Returns a cached page with the trackers and the moment of now."""
    detail = page.experiment
    now = last_moment(daemon, experiment, detail.summary, stages=detail.stages, memory=page.memory)
    trackers = await daemon.trackers(experiment)
    if now != page.moment or trackers != page.trackers:
        page = msgspec.structs.replace(page, moment=now, trackers=trackers)
        daemon.pages.renew(experiment, page)
    return page


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
    detail = await get_experiment(connection, experiment, books)
    best_versions = {version for stage in detail.stages for version in stage.best_kept}
    return ExperimentPage(
        experiment=detail,
        reward_curve=await curves.of(connection, experiment, most=CURVE_POINTS),
        evals=await list_evals(connection, experiment, newest=SHOWN_EVALS),
        weights=await list_weights(connection, experiment, newest=NEWEST),
        overdue=await list_overdue(connection, experiment, newest=NEWEST),
        overdue_windows=await count_overdue(connection, experiment),
        checkpoints=await existing_checkpoints(connection, experiment, newest=NEWEST, beside=best_versions),
        workers=await list_workers(connection, experiment, newest=SHOWN_WORKERS),
        signal=await signal_of(connection, experiment),
        waiting=None if detail.summary.state in ENDED else waiting,
        memory=with_peaks(memory, await memory_peaks(connection, experiment)) if memory else [],
        trackers=list(trackers),
        budgets=list(budgets),
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
