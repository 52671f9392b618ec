"""`RunHandle` and `AsyncRunHandle`: one experiment of a daemon, with its rows, its waits and its commands."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from rftd.daemon.http.client.answer import Parameter
from rftd.daemon.http.client.downloads import download_checkpoint
from rftd.daemon.http.client.driving import blocking, handled, yielding
from rftd.daemon.http.client.live_cell import LiveCell
from rftd.daemon.http.client.progress import WaitProgress
from rftd.daemon.http.client.recomputing import recomputed
from rftd.daemon.http.client.rollouts import (
    SeriesPoint,
    TextGroup,
    TextRollout,
    TokenFigures,
    series_points,
    token_rows,
)
from rftd.daemon.http.client.rows import RowDict, RowList
from rftd.daemon.http.client.steering import SteeredRun
from rftd.daemon.http.views import checkpoints as checkpoint_views
from rftd.daemon.http.views import comparison, evaluations, experiences, experiments, history
from rftd.daemon.http.views import drops as drops_views
from rftd.daemon.http.views import groups as group_views
from rftd.daemon.http.views import moment as moment_views
from rftd.daemon.http.views import series as series_views
from rftd.daemon.http.views import text as text_views
from rftd.daemon.http.views import timeline as timeline_views
from rftd.daemon.http.views import tokens as token_views
from rftd.daemon.http.views.comparison import Basis, ComparedStep
from rftd.daemon.http.views.evaluations import PairedAnswer, Which
from rftd.daemon.http.views.experiences import ExperienceView, Order, State
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import ENDED, Moment
from rftd.daemon.http.views.route import ReadRoute
from rftd.daemon.http.views.series import SeriesBasis
from rftd.daemon.http.views.timeline import Timeline
from rftd.daemon.run.recomputation import Recomputation
from rftd.daemon.run.why.wait import Why
from rftd.ops.errors import UnreachableError, WaitTimeoutError
from rftd.storage.queries.drops import Drops
from rftd.storage.queries.experiences import ExperienceRow
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.group_pages import GroupRow
from rftd.storage.queries.lengths import Lengths
from rftd.storage.queries.steps import EvalRow, StepRow
from rftd.storage.queries.weights import CheckpointRow

if TYPE_CHECKING:
    from rftd.daemon.http.client.connection import DaemonConnection

_PAGE: Final = 1000
"""Maximum number of elements requested at once."""
_WINDOW: Final = 4096
"""Number of tokens of one request."""
_PATIENCE_S: Final = 3600.0
"""Longest absence of a daemon during `wait`: a machine may be restarted below it."""
_FIRST_PAUSE_S: Final = 0.1
"""First pause in seconds between two reads of the summary."""
_LONGEST_PAUSE_S: Final = 2.0
"""Longest pause in seconds between two reads of the summary."""
Steps = int | tuple[int | None, int | None] | None
"""One step, or the first and the last one, each None if open."""


class AsyncRunHandle(SteeredRun):
    """One experiment; each call asks the daemon anew."""

    def __repr__(self) -> str:
        return f"<run {self.name} ({self.id}) at {self._connection.url}>"

    async def summary(self) -> ExperimentSummary:
        """Returns the experiment's line in the list: state, step, reward."""
        return (await self._connection.ask(experiments.summary, name=self.id, after=self._position)).value

    async def page(self) -> ExperimentPage:
        """Returns everything shown on the experiment's page."""
        return (await self._connection.ask(experiments.one, name=self.id, after=self._position)).value

    async def why(self) -> Why:
        """Returns each role's work or wait, and the event ending the wait; worst first."""
        return (await self._connection.ask(experiments.why, name=self.id, after=self._position)).value

    async def wait(self, *, timeout_s: float | None = None, show: bool = True) -> ExperimentSummary:
        """Waits for the end, showing progress in a terminal or a cell, and returns the last summary.

        A restarting daemon is waited for. Raises WaitTimeoutError after `timeout_s`; the experiment goes on.
        """
        with WaitProgress(show=show) as progress:

            async def update(summary: ExperimentSummary) -> None:
                progress.update(summary)

            return await self._until_ended(update, timeout_s)

    async def watch(self, *metrics: str, timeout_s: float | None = None, points: int = 200) -> ExperimentSummary:
        """Waits as `wait`, and draws the run live in a notebook's cell: the sentence, the pace and curves of figures.

        Default: `reward`. Drawn by anywidget, of the extra `notebook`; without it, or outside of a notebook, the
        progress is shown as by `wait`.
        """
        cell = LiveCell.shown()
        if cell is None:
            return await self.wait(timeout_s=timeout_s)

        async def update(summary: ExperimentSummary) -> None:
            cell.update(summary, await self.moment(), await self.series(*metrics, points=points))

        return await self._until_ended(update, timeout_s)

    async def _until_ended(
        self, update: Callable[[ExperimentSummary], Awaitable[None]], timeout_s: float | None
    ) -> ExperimentSummary:
        """Reads summaries until the end, with growing pauses; see `wait`."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        away_s = math.inf
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                summary = await self.summary()
                await update(summary)
            except UnreachableError:
                away_s = min(away_s, time.monotonic())
                if time.monotonic() - away_s > _PATIENCE_S:
                    raise
            else:
                away_s = math.inf
                if summary.state in ENDED:
                    return summary
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise WaitTimeoutError(
                    f"{self.name} has not ended within {timeout_s:g} s", fix="wait again, or look at `run.why()`"
                )
            await self._connection.pause(min(pause_s, remaining_s))
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    async def steps(
        self, *, metrics: Sequence[str] | None = None, first: int = 0, last: int | None = None
    ) -> RowList[StepRow]:
        """Returns the training steps in order, one column per figure; `metrics` chooses figures.

        `series` has the course of a figure over many steps in a few points.
        """
        chosen = None if metrics is None else list(metrics)
        rows = await self._all_pages(history.steps, "first", None, first=first, last=last, metrics=chosen)
        return RowList.of(rows, metrics=metrics)

    async def evals(self, taskset: str | None = None) -> RowList[EvalRow]:
        """Returns the evaluations in the order of weight versions."""
        return RowList.of(await self._all_pages(history.evals, "cursor", None, taskset=taskset))

    async def experiences(
        self,
        *,
        step: Steps = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        state: State | None = None,
        taskset: str | None = None,
        order: Order = "newest",
        limit: int | None = 50,
        text: bool = False,
    ) -> RowList[ExperienceRow]:
        """Returns the experiences passing the filter, at most `limit`; None for all.

        With `text`, rows have prompt, answer and truth too, see `rollouts`.
        """
        first, last = _step_bounds(step)
        rows = await self._all_pages(
            experiences.experiences,
            "cursor",
            limit,
            first_step=first,
            last_step=last,
            min_reward=min_reward,
            max_reward=max_reward,
            state=state,
            taskset=taskset,
            order=order,
        )
        return cast("RowList[ExperienceRow]", await self.texts(rows)) if text else RowList.of(rows)

    async def rollouts(
        self,
        *,
        step: Steps = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        state: State | None = None,
        order: Order = "newest",
        limit: int | None = 10,
    ) -> RowList[TextRollout]:
        """Returns the experiences passing the filter as text, at most `limit`; None for all."""
        rows = await self.experiences(
            step=step, min_reward=min_reward, max_reward=max_reward, state=state, order=order, limit=limit
        )
        return await self.texts(rows)

    async def rollout(self, id: str) -> TextRollout:
        """Returns one experience as text, by its id or 8 or more digits of the beginning."""
        return TextRollout((await self._connection.ask(text_views.experience_text, name=self.id, experience=id)).value)

    async def group(self, id: str) -> TextGroup:
        """Returns the rollouts of one group as text."""
        page = (await self._connection.ask(text_views.group_text, name=self.id, group=id)).value
        items = list(page.items)
        while page.next is not None:
            page = (await self._connection.ask(text_views.group_text, name=self.id, group=id, first=page.next)).value
            items += page.items
        return TextGroup(msgspec.structs.replace(page, items=items))

    async def groups(self, step: Steps = None) -> list[TextGroup]:
        """Returns the groups planned for a step as text; without a step, those of the newest batch."""
        if step is None:
            step = (await self.summary()).step
        rows = await self.experiences(step=step, order="oldest", limit=None)
        return [await self.group(id) for id in dict.fromkeys(row.group for row in rows)]

    async def tasks(
        self, *, order: Literal["newest", "oldest"] = "newest", limit: int | None = 50
    ) -> RowList[GroupRow]:
        """Returns the tasks with a closed group, at most `limit`, None for all: row, rollouts, mean reward."""
        return RowList.of(await self._all_pages(group_views.groups, "cursor", limit, order=order))

    async def tokens(
        self, id: str, *, first: int = 0, n: int | None = None, recompute: bool = False
    ) -> RowList[TokenFigures]:
        """Returns the tokens of an experience from `first` on, `n` of them or all: text, log-probability, advantage.

        With `recompute`, ratio, KL and terms of the objective too; a replay up to the step is waited for.
        """
        if recompute:
            await self.recompute(id)
        rows: list[TokenFigures] = []
        start: int | None = first
        while start is not None and (n is None or len(rows) < n):
            count = _WINDOW if n is None else min(_WINDOW, n - len(rows))
            window = (
                await self._connection.ask(token_views.tokens, name=self.id, experience=id, first=start, n=count)
            ).value
            rows += token_rows(window)
            start = window.next
        return RowList.of(rows)

    async def recompute(self, id: str, *, show: Callable[[str], None] | None = None) -> Recomputation:
        """Requests ratio, KL and terms of the objective at each token of an experience's step, and waits for them.

        The daemon replays the training up to the step, once no run needs the memory; `show` receives the progress.
        """
        return await recomputed(self._connection, self.id, id, show=show)

    async def series(
        self, *metrics: str, by: SeriesBasis = "step", points: int = 300, beside: Sequence[RunHandle] = ()
    ) -> RowList[SeriesPoint]:
        """Returns figures thinned to at most `points` buckets with mean, range and quantiles; default `reward`.

        `beside` are further runs in the answer.
        """
        answer = await self._connection.ask(
            series_views.series,
            runs=[self.id, *(run.id for run in beside)],
            metrics=list(metrics) or None,
            by=by,
            points=points,
        )
        return RowList.of(series_points(answer.value))

    async def timeline(
        self, begin: datetime | None = None, end: datetime | None = None, *, points: int = 200
    ) -> Timeline:
        """Returns the work of each worker between two moments: rollouts, trained steps, idle spans, marks.

        Times without a time zone are UTC; without a moment, the experiment's start and end.
        """
        answer = await self._connection.ask(
            timeline_views.timeline,
            name=self.id,
            from_=_iso_text(begin),
            to=_iso_text(end),
            points=points,
            after=self._position,
        )
        return answer.value

    async def answers(
        self, version: int, *, taskset: str | None = None, order: Which = "worst", limit: int = 20
    ) -> RowList[PairedAnswer]:
        """Returns answers of the evaluation of a weight version, the worst ones first unless ordered otherwise."""
        answer = await self._connection.ask(
            evaluations.evaluation, name=self.id, version=version, taskset=taskset, order=order, limit=limit
        )
        return RowList.of(answer.value.items)

    async def experience(self, id: str, *, tokens: bool = True) -> ExperienceView:
        """Returns one experience, with token ids, mask and log-probabilities unless `tokens` is false."""
        return (await self._connection.ask(experiences.experience, name=self.id, experience=id, tokens=tokens)).value

    async def drops(self) -> Drops:
        """Returns the experiences that were not trained by reason: counts, shares, lengths and examples."""
        return (await self._connection.ask(drops_views.drops, name=self.id)).value

    async def checkpoints(self, *, limit: int | None = None) -> RowList[CheckpointRow]:
        """Returns the existing checkpoints, newest first, at most `limit`."""
        return RowList.of(await self._all_pages(checkpoint_views.checkpoints, "cursor", limit))

    async def download(self, step: int, to: str | os.PathLike[str]) -> Path:
        """Downloads the checkpoint of a step into a folder and checks its files; needs a token of role admin.

        A download cut off goes on where it ended.
        """
        return await download_checkpoint(self._connection, self.id, step, Path(to))

    async def moment(self) -> Moment:
        """Returns the present work in one sentence, with progress, pace and remaining time."""
        return (await self._connection.ask(moment_views.moment, name=self.id, after=self._position)).value

    async def lengths(self) -> Lengths:
        """Returns the lengths of responses generated, trained and dropped."""
        return (await self._connection.ask(experiences.lengths, name=self.id)).value

    async def compared(
        self, *runs: AsyncRunHandle | RunHandle, by: Basis = "steps", points: int = 10
    ) -> RowList[ComparedStep]:
        """Returns this run and others at equal steps, tokens or time; see `Client.compare`."""
        names = [self.id, *(run.id for run in runs)]
        return await compared(self._connection, names, by=by, points=points)

    async def each_rollout(
        self, /, *, batch: int = 256, limit: int | None = None, order: Order = "oldest", **filters: Any
    ) -> AsyncGenerator[TextRollout, None]:
        """Yields the experiences passing the filters of `rollouts` as text, with `batch` texts in memory at once."""
        rows = await self.experiences(order=order, limit=limit, **filters)
        for start in range(0, len(rows), batch):
            for rollout in await self.texts(rows[start : start + batch]):
                yield rollout

    async def texts(self, rows: Sequence[ExperienceRow]) -> RowList[TextRollout]:
        """Returns experiences as text, read group by group."""
        members: dict[str, TextRollout] = {}
        counts = Counter(row.group for row in rows)
        for row in rows:
            if row.id in members:
                continue
            if counts[row.group] > 1:
                members |= {rollout.id: rollout for rollout in (await self.group(row.group)).rollouts}
            else:
                members[row.id] = await self.rollout(row.id)
        return RowList(members[row.id] for row in rows)

    async def _all_pages(
        self, read: ReadRoute[Any], start: str, most: int | None, **parameters: Parameter
    ) -> list[Any]:
        """Returns the items of all pages of a list up to `most`; `start` names the parameter of the next page."""
        items: list[Any] = []
        while most is None or len(items) < most:
            limit = _PAGE if most is None else min(_PAGE, most - len(items))
            query: dict[str, Any] = {**parameters, "limit": limit, "after": self._position}
            page = (await self._connection.ask(read, name=self.id, **query)).value
            items += page.items
            if page.next is None:
                break
            parameters[start] = page.next
        return items


class RunHandle:
    """One experiment; each call asks the daemon anew, and blocks until the answer."""

    def __init__(self, twin: AsyncRunHandle) -> None:
        """`twin` is the asynchronous handle whose methods are driven."""
        self._twin = twin

    @property
    def id(self) -> str:
        """Id of the experiment."""
        return self._twin.id

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._twin.name

    def __repr__(self) -> str:
        return repr(self._twin)

    def _repr_html_(self) -> str:
        """Returns the run's page as a card, for notebooks."""
        from rftd.daemon.http.client.cards import run_card

        return run_card(self.page())

    summary = blocking(AsyncRunHandle.summary)
    page = blocking(AsyncRunHandle.page)
    why = blocking(AsyncRunHandle.why)
    wait = blocking(AsyncRunHandle.wait)
    watch = blocking(AsyncRunHandle.watch)
    steps = blocking(AsyncRunHandle.steps)
    evals = blocking(AsyncRunHandle.evals)
    answers = blocking(AsyncRunHandle.answers)
    experiences = blocking(AsyncRunHandle.experiences)
    experience = blocking(AsyncRunHandle.experience)
    rollouts = blocking(AsyncRunHandle.rollouts)
    rollout = blocking(AsyncRunHandle.rollout)
    groups = blocking(AsyncRunHandle.groups)
    tasks = blocking(AsyncRunHandle.tasks)
    group = blocking(AsyncRunHandle.group)
    tokens = blocking(AsyncRunHandle.tokens)
    recompute = blocking(AsyncRunHandle.recompute)
    series = blocking(AsyncRunHandle.series)
    timeline = blocking(AsyncRunHandle.timeline)
    drops = blocking(AsyncRunHandle.drops)
    checkpoints = blocking(AsyncRunHandle.checkpoints)
    download = blocking(AsyncRunHandle.download)
    moment = blocking(AsyncRunHandle.moment)
    lengths = blocking(AsyncRunHandle.lengths)
    compared = blocking(AsyncRunHandle.compared)
    pause = blocking(AsyncRunHandle.pause)
    resume = blocking(AsyncRunHandle.resume)
    cancel = blocking(AsyncRunHandle.cancel)
    prioritize = blocking(AsyncRunHandle.prioritize)
    archive = blocking(AsyncRunHandle.archive)
    restore = blocking(AsyncRunHandle.restore)
    remove = blocking(AsyncRunHandle.remove)
    note = blocking(AsyncRunHandle.note)
    notes = blocking(AsyncRunHandle.notes)
    add_tasks = blocking(AsyncRunHandle.add_tasks)
    end_tasks = blocking(AsyncRunHandle.end_tasks)
    fork = handled(AsyncRunHandle.fork, lambda run: blocking_run(run))
    texts = blocking(AsyncRunHandle.texts)
    each_rollout = yielding(AsyncRunHandle.each_rollout)


def blocking_run(outcome: AsyncRunHandle) -> RunHandle:
    """Returns a run as a blocking handle; the consequence of a dry run unchanged."""
    return RunHandle(outcome) if isinstance(outcome, AsyncRunHandle) else outcome


async def compared(
    connection: DaemonConnection, names: Sequence[str], *, by: Basis, points: int
) -> RowList[ComparedStep]:
    """Returns runs at equal steps, tokens or time: a row for each run and point, with all figures."""
    answer = (await connection.ask(comparison.comparison, name=names, by=by, points=points)).value
    rows: RowList[Any] = RowList()
    for point in answer.points:
        for summary, standing in zip(answer.items, point.standings, strict=True):
            if standing is not None:
                rows.append(RowDict(standing, at=point.at, run=summary.name))
    return rows


def _iso_text(moment: datetime | None) -> str | None:
    """Returns a moment in ISO 8601, in UTC if it has no zone; None for None."""
    if moment is None:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()


def _step_bounds(step: Steps) -> tuple[int | None, int | None]:
    """Returns the first and the last step of a range; None for an open end."""
    return step if isinstance(step, tuple) else (step, step)
