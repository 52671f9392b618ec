"""What the answers of the API hold: typed rows of the tables, in lists and on pages."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.storage.queries.batches import BatchRow, ItemRow
from rftd.storage.queries.books import Books
from rftd.storage.queries.curve import RewardCurves, RewardPoint
from rftd.storage.queries.experiences import ExperienceRow
from rftd.storage.queries.experiments import ExperimentDetail, ExperimentSummary, get_experiment
from rftd.storage.queries.steps import EvalRow, StepRow, list_evals
from rftd.storage.queries.weights import (
    CheckpointRow,
    OverdueRow,
    WeightRow,
    WorkerRow,
    list_checkpoints,
    list_overdue,
    list_weights,
    list_workers,
)
from rftd.streams.folds.spine import Status

CURVE_POINTS: Final = 200
"""Most points of a curve on a page; more are averaged."""
NEWEST: Final = 8
"""Weight versions and checkpoints that a page shows."""
SHOWN_WORKERS: Final = 32
SHOWN_EVALS: Final = 100


class ExperimentList(msgspec.Struct, frozen=True, kw_only=True):
    """Some experiments, newest first."""

    items: list[ExperimentSummary]
    next: int | None
    """`offset` of the rest; null at the end."""


class StepList(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps, in order."""

    items: list[StepRow]
    next: int | None
    """`first` of the rest; null at the end."""


class ExperienceList(msgspec.Struct, frozen=True, kw_only=True):
    """Some experiences."""

    items: list[ExperienceRow]
    next: int | None
    """`offset` of the rest; null at the end."""


class EvalList(msgspec.Struct, frozen=True, kw_only=True):
    """Every evaluation, in the order of weight versions."""

    items: list[EvalRow]


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """One step's batch and its items, in the order in which they are trained."""

    batch: BatchRow
    items: list[ItemRow]


class ExperimentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one page about an experiment shows."""

    experiment: ExperimentDetail
    reward_curve: list[RewardPoint]
    """At most 200 points; neighbours are averaged."""
    evals: list[EvalRow]
    weights: list[WeightRow]
    """The newest."""
    overdue: list[OverdueRow]
    """The newest windows for which explorers waited longer than `sync_timeout`."""
    overdue_windows: int
    """How many there are in all."""
    checkpoints: list[CheckpointRow]
    """The newest that are still there."""
    workers: list[WorkerRow]
    """The newest."""
    waiting: str | None
    """Why nothing moves although it has not ended: the log takes no appends."""


async def page_of(
    connection: AsyncConnection,
    experiment: UUID,
    curves: RewardCurves,
    waiting: str | None = None,
    *,
    books: Books | None = None,
) -> ExperimentPage:
    """The page of one experiment, with these books instead of new ones, if given. Raises NotFoundError."""
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
        checkpoints=[row for row in checkpoints if row.deleted_reason is None][-NEWEST:],
        workers=(await list_workers(connection, experiment))[-SHOWN_WORKERS:],
        waiting=None if Status(detail.summary.state).ended else waiting,
    )


def thinned(points: list[RewardPoint], most: int = CURVE_POINTS) -> list[RewardPoint]:
    """At most `most` points: each the mean, over its experiences, of as many neighbours.

    One that holds both inherited and own steps counts as own.
    """
    size = -(-len(points) // most)
    return points if size <= 1 else [_merged(points[i : i + size]) for i in range(0, len(points), size)]


def _merged(points: list[RewardPoint]) -> RewardPoint:
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
