"""Sweeps: submit, cancel; the list, and the table of one: mean and spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import KEEPING_TIMEOUT_S, Reason, Receipt, receipt_of
from rftd.daemon.http.views.comparison import HELD_OUT, REWARD
from rftd.daemon.http.views.route import MOST, NAME_CHARACTERS, After, Commanded, Daemon, command, read
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.experiments import ExperimentSummary, get_summary
from rftd.storage.queries.steps import list_evals

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.daemon.run.operations import StandingSweep

MOST_RUNS: Final = 1000
"""Maximum number of runs in one sweep."""
_TAG: Final = "sweeps"
"""Chapter of the OpenAPI document with these routes."""
_ACCURACY: Final = "accuracy/mean"
"""Name of an evaluation's figure of accuracy."""
NOT_SUBMITTED: Final = "to come"
"""State of a run not submitted yet."""
REFUSED: Final = "refused"
"""State of a point of a sweep without an experiment, refused at submission."""
STOPPED: Final = "stopped"
"""State of a run ended by a halving."""
SKIPPED: Final = "skipped"
"""State of a run not begun because its sweep was cancelled."""
SweepName = Annotated[
    str, Meta(max_length=NAME_CHARACTERS, description="Its name, `NAME@2`, its id, or a unique beginning of its id.")
]
"""Name or id of a sweep in a request."""


class SweptField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of one run different from the sweep's file."""

    path: Annotated[list[str | int], Meta(max_length=64)]
    """Keys and indices leading to the field."""
    value: Any
    """Content of the field in this run."""


class SweptPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a sweep: its settings for the table, its seed, and the changed fields."""

    settings: dict[str, str] = {}
    """Labels in the table: runs of equal settings are one line, over their seeds."""
    seed: Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)] = 42
    """Seed of the run's file, for the table; `changes` set it."""
    changes: list[SweptField] = []
    """Fields in which the run differs from the sweep's file."""


class HalveSweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to stop the half of the settings with the lower held-out scores."""

    at: Annotated[list[Annotated[int, Meta(ge=1, le=MOST)]], Meta(min_length=1, max_length=32)]
    """Weight versions, in order; the taskset is evaluated at each."""
    taskset: Annotated[str, Meta(max_length=NAME_CHARACTERS)] = ""
    """Held-out taskset with the deciding score; default: the first."""


class SubmitSweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/sweeps: a file, and the changes of each run."""

    config: dict[str, Any]
    """The experiment file, as for POST /v1/experiments."""
    points: Annotated[list[SweptPoint], Meta(min_length=1, max_length=MOST_RUNS)]
    """The runs, in starting order."""
    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)] | None = None
    """Name of the sweep and prefix of its runs' names; default: the file's."""
    at_once: Annotated[int, Meta(ge=1, le=MOST_RUNS)] | None = None
    """Maximum number of runs under way; default: the daemon's number of slots."""
    halving: HalveSweep | None = None
    """Rule by which the worse half of the experiments is stopped; null without one."""


class SweepReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep is in the log, with a name for each run."""

    id: str
    """Id of the sweep."""
    name: str
    """Name of the sweep."""
    event: str
    """Id of the event written for the command."""
    position: str
    """Position for `?after=`, for reads that must see the sweep."""
    runs: int
    """Number of runs of the sweep."""
    at_once: int
    """Maximum number of experiments running at once."""


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of sweeps, with the states of the runs."""

    id: str
    """Id of the sweep."""
    name: str
    """Name of the sweep."""
    submitted_ns: int
    """Time of the submission, in nanoseconds since 1970."""
    runs: int
    """Number of runs of the sweep."""
    at_once: int
    """Maximum number of experiments running at once."""
    states: dict[str, int]
    """Number of runs in each state."""
    over: bool
    """True if each run of the sweep has ended, was refused, or will never be submitted."""
    cancelled: bool
    """True if the sweep was cancelled."""


class SweepList(msgspec.Struct, frozen=True, kw_only=True):
    """Every sweep, newest first."""

    items: list[SweepSummary]
    """All sweeps, newest first."""


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep, with its state and its figures so far."""

    name: str
    """Name of the experiment."""
    settings: dict[str, str]
    """Swept settings of the experiment, as text."""
    seed: int
    """Seed of the experiment."""
    state: str
    """State of the run's experiment, or `to come`, `refused`, `skipped`, `stopped`."""
    reason: str | None
    """Reason of the state, in words; null without one."""
    experiment: str | None
    """Id of the run's experiment, once submitted."""
    step: int
    """Number of steps trained so far."""
    total_steps: int
    """Number of steps of all stages; 0 before the run is submitted."""
    figures: dict[str, float | None]
    """Mean reward of the newest experiences, and the newest score of each held-out taskset."""


class SeedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the seeds of one setting: mean, deviation and extremes."""

    runs: int
    """Number of runs with the figure."""
    mean: float
    """Mean of the figure over the seeds."""
    deviation: float | None
    """Standard deviation of the runs; null for one run."""
    best: float
    """Highest figure over the seeds."""
    worst: float
    """Lowest figure over the seeds."""


class SweepCell(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of equal settings, with each figure's spread over the seeds."""

    settings: dict[str, str]
    """Settings common to the experiments, as text."""
    runs: int
    """Number of runs with the settings, usually one for each seed."""
    states: dict[str, int]
    """Number of runs in each state."""
    figures: dict[str, SeedSpread]
    """Spread of each figure over the seeds, by the figure's name."""


class SweepPage(msgspec.Struct, frozen=True, kw_only=True):
    """The table of one sweep, complete or while it runs."""

    sweep: SweepSummary
    """The sweep, with the states of its runs."""
    cells: list[SweepCell]
    """Runs with equal settings, summarised over their seeds."""
    runs: list[SweepRun]
    """The runs of the sweep, in starting order."""


@command("/v1/sweeps", SubmitSweep, SweepReceipt, tag=_TAG, timeout_s=KEEPING_TIMEOUT_S, submits=True, name="submit")
async def submit_sweep(daemon: Commanded, body: SubmitSweep, key: UUID) -> SweepReceipt:
    """Submit a sweep: experiments with some fields of one file changed. All are checked before any is begun."""
    from rftd.daemon.run.operations import WantedSweep
    from rftd.streams.events.sweep import FieldChange, Halving, SweepPoint

    points = [
        SweepPoint(
            name="",
            settings=point.settings,
            seed=point.seed,
            changes=tuple(FieldChange(tuple(change.path), change.value) for change in point.changes),
        )
        for point in body.points
    ]
    halving = None
    if body.halving is not None:
        halving = Halving(at=tuple(body.halving.at), taskset=body.halving.taskset)
    request = WantedSweep(body.config, tuple(points), name=body.name, at_once=body.at_once, halving=halving)
    receipt = await daemon.operations.sweep(request, request_id=key)
    sweep = receipt.standing.sweep
    return SweepReceipt(
        id=str(sweep.id),
        name=sweep.name,
        event=str(receipt.done.event),
        position=str(receipt.done.position),
        runs=len(sweep.points),
        at_once=sweep.submitted.at_once,
    )


@command("/v1/sweeps/{sweep}/cancel", Reason, Receipt, tag=_TAG, optional=True, name="cancel", summary="Cancel")
async def cancel_sweep(daemon: Commanded, body: Reason, key: UUID, sweep: SweepName) -> Receipt:
    """Cancel a sweep: no further run begins, and unfinished runs are cancelled."""
    standing = await daemon.operations.sweep_named(sweep)
    id = standing.sweep.id
    return receipt_of(id, await daemon.operations.cancel_sweep(id, reason=body.reason, request_id=key))


@read("/v1/sweeps", SweepList, tag=_TAG, name="listed")
async def sweeps(daemon: Daemon) -> SweepList:
    """Every sweep, newest first, with the number of its runs in each state."""
    standings = await daemon.operations.sweeps()
    return SweepList(items=[_summary(standing, _states(standing)) for standing in reversed(standings)])


@read("/v1/sweeps/{sweep}", SweepPage, tag=_TAG, name="one")
async def sweep_page(daemon: Daemon, sweep: SweepName, after: After = None) -> SweepPage:
    """The table of a sweep: its runs, and for each setting the mean and the spread of its figures over the seeds."""
    standing = await daemon.operations.sweep_named(sweep)
    states = _states(standing)
    ids = {run.point: run.experiment for run in standing.runs}
    runs: list[SweepRun] = []
    # A sweep that is over by the log gets its last table: tables behind the log would lack ends, reasons and scores.
    async with daemon.read(after, newest=standing.over) as connection:
        for number, point in enumerate(standing.sweep.points):
            experiment = ids.get(number)
            summary = None if experiment is None else await _summary_of(connection, experiment)
            refused = standing.sweep.refused.get(number)
            reason = summary.reason if summary is not None else None
            runs.append(
                SweepRun(
                    name=point.name,
                    settings=point.settings,
                    seed=point.seed,
                    state=states[number],
                    reason=f"{refused.code}: {refused.reason}" if refused is not None else reason,
                    experiment=None if experiment is None else str(experiment),
                    step=0 if summary is None else summary.step,
                    total_steps=0 if summary is None else summary.total_steps,
                    figures={} if experiment is None else await _figures(connection, experiment, summary),
                )
            )
    return SweepPage(sweep=_summary(standing, states), cells=list(_cells(runs)), runs=runs)


async def _summary_of(connection: AsyncConnection, experiment: UUID) -> ExperimentSummary | None:
    """Returns the summary of a point's experiment; None while the tables lag behind the log."""
    try:
        return await get_summary(connection, experiment)
    except NotFoundError:  # the tables lag behind
        return None


async def _figures(
    connection: AsyncConnection, experiment: UUID, summary: ExperimentSummary | None
) -> dict[str, float | None]:
    """Returns the comparable figures of a point: mean reward, and the newest score and accuracy on each taskset."""
    figures: dict[str, float | None] = {}
    if summary is not None and summary.reward_mean is not None:
        figures[REWARD] = summary.reward_mean
    for scored in await list_evals(connection, experiment):  # ordered by version: the newest score remains
        if scored.score is not None:
            figures[f"{HELD_OUT}{scored.taskset}"] = scored.score
        if (accuracy := scored.metrics.get(_ACCURACY)) is not None:
            figures[f"{HELD_OUT}{scored.taskset}/accuracy"] = accuracy
    return figures


def _states(standing: StandingSweep) -> list[str]:
    """Returns the state of each run."""
    stopped = standing.sweep.stopped
    submitted = {
        run.point: STOPPED if run.point in stopped and run.status.value == "cancelled" else run.status.value
        for run in standing.runs
    }
    waiting = NOT_SUBMITTED if standing.sweep.cancelled is None else SKIPPED
    refused = standing.sweep.refused
    return [
        submitted.get(number, REFUSED if number in refused else waiting) for number in range(len(standing.sweep.points))
    ]


def _counted(states: Sequence[str]) -> dict[str, int]:
    """Returns the number of occurrences of each state, in the order of first occurrence."""
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _summary(standing: StandingSweep, states: Sequence[str]) -> SweepSummary:
    """Returns a sweep with the numbers of its points by state."""
    sweep = standing.sweep
    return SweepSummary(
        id=str(sweep.id),
        name=sweep.name,
        submitted_ns=sweep.submitted_ns,
        runs=len(sweep.points),
        at_once=sweep.submitted.at_once,
        states=_counted(states),
        over=standing.over,
        cancelled=sweep.cancelled is not None,
    )


def _cells(runs: Sequence[SweepRun]) -> Iterator[SweepCell]:
    """Yields the runs of equal settings, in the order of their first run."""
    by_settings: dict[tuple[tuple[str, str], ...], list[SweepRun]] = {}
    for run in runs:
        by_settings.setdefault(tuple(run.settings.items()), []).append(run)
    for settings, members in by_settings.items():
        names = dict.fromkeys(name for run in members for name in run.figures)
        yield SweepCell(
            settings=dict(settings),
            runs=len(members),
            states=_counted([run.state for run in members]),
            figures={name: _spread([run.figures for run in members], name) for name in names},
        )


def _spread(figures: Sequence[Mapping[str, float | None]], name: str) -> SeedSpread:
    """Returns mean, standard deviation, best and worst of a figure over seeds, without seeds lacking the figure."""
    known_figures = [figure for run_figures in figures if (figure := run_figures.get(name)) is not None]
    return SeedSpread(
        runs=len(known_figures),
        mean=statistics.fmean(known_figures),
        deviation=statistics.stdev(known_figures) if len(known_figures) > 1 else None,
        best=max(known_figures),
        worst=min(known_figures),
    )
