"""`Course`: the figures of one experiment by position, from steps, evaluations and workers, with its marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import NotFoundError
from rftd.storage.queries.marks import CourseMark, marks_of
from rftd.storage.queries.rows import fetch_one, fetch_raw
from rftd.storage.queries.shares import shares_of
from rftd.storage.queries.step_columns import ABSENT, TABLE_FIGURES, StepColumns, StepTable
from rftd.storage.queries.steps import EvalRow, list_evals
from rftd.storage.queries.thinning import Bands, Column, Grid, banded
from rftd.storage.queries.trainer_time import TIME, TIME_COLUMNS, TIMES, trainer_time
from rftd.streams.figures.step_figures import REWARDS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class Presence(NamedTuple):
    """Sorted times of the starts and of the ends of a role's workers, in nanoseconds."""

    starts: NDArray[np.int64]
    """Start times of the role's workers, ascending."""
    ends: NDArray[np.int64]
    """End times of the role's ended workers, ascending."""

    def living(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the number of living workers at each time."""
        started = np.searchsorted(self.starts, times_ns, side="right")
        return (started - np.searchsorted(self.ends, times_ns, side="right")).astype(np.float64)


async def presence_of(connection: AsyncConnection, experiment: UUID) -> dict[str, Presence]:
    """Returns the starts and ends of the experiment's workers by role."""
    _, rows = await fetch_raw(
        connection,
        """SELECT role, started_ns, COALESCE(stopped_ns, lost_ns) FROM workers
        WHERE experiment = :experiment AND started_offset IS NOT NULL AND role IS NOT NULL""",
        experiment=experiment.bytes,
    )
    return {
        role: Presence(
            np.sort(np.array([start for name, start, _ in rows if name == role], np.int64)),
            np.sort(np.array([end for name, _, end in rows if name == role and end is not None], np.int64)),
        )
        for role in sorted({row[0] for row in rows})
    }


async def load_times(connection: AsyncConnection, experiment: UUID) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the weight versions loaded by explorers, and the mean seconds of each version's loads."""
    _, rows = await fetch_raw(
        connection,
        """SELECT version, AVG(duration_s) FROM activations WHERE experiment = :experiment AND duration_s IS NOT NULL
        GROUP BY version ORDER BY version""",
        experiment=experiment.bytes,
    )
    return np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.float64)


REWARD: Final = "reward"
"""Figure of the mean reward, banded by the rewards' minimum, maximum and quantiles in each step."""
RATE: Final = "tokens_per_s"
"""Figure of the trained tokens per second of training."""
HELD_OUT: Final = "held-out/"
"""Prefix of the figures of evaluations: `held-out/TASKSET` is the score, `held-out/TASKSET/FIGURE` another figure."""
WORKERS: Final = "workers/"
"""Prefix of the number of living workers of a role."""
LOADING: Final = "weights/load_s"
"""Figure of the mean seconds taken by explorers to load a weight version."""
_REWARD_BANDS: Final = tuple(f"{REWARDS}/{name}" for name in ("mean", "min", "max", "p10", "p50", "p90"))
"""Names of the step figures behind `REWARD`: mean, minimum, maximum, 10th, 50th and 90th percentile."""
_NEWEST_EVALS: Final = 8
"""Number of newest evaluations searched for names of figures, in each share of the history."""
_COMMON_FIGURES: Final = (REWARD, RATE, *TABLE_FIGURES)
"""Names of the figures on offer for every experiment."""


class _Identity(msgspec.Struct, frozen=True):
    """A row with the name and the start of an experiment."""

    name: str
    """Name of the experiment."""
    started_ns: int
    """Start of the experiment, or its submission before the start, Unix time in nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One experiment so far: figures with their positions in steps, tokens or seconds."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    started_ns: int
    """Start of the experiment, or its submission before the start, Unix time in nanoseconds."""
    table: StepTable
    """The counting steps of the history, with the requested figures."""
    at: Column
    """Position of each step."""
    names: list[str]
    """Names of all figures of the experiment."""
    points: Mapping[str, tuple[Column, Column]]
    """Positions and figures of evaluations and of loaded weights, by name."""
    presence: Mapping[str, Presence]
    """Starts and ends of workers, by role."""
    marks: list[CourseMark]
    """Moments of the experiment, to be drawn beside the curves."""
    mark_positions: list[float]
    """Position of each mark, in the unit of `at`."""

    def bands(self, metric: str, grid: Grid) -> Bands:
        """Returns the bands of a figure; a figure of no step is NaN in every bucket."""
        if metric.startswith(WORKERS):
            return self._living(metric.removeprefix(WORKERS), grid)
        if metric in self.points:
            return banded(grid, *self.points[metric])
        if metric == REWARD:
            mean, low, high, *quantiles = (
                banded(grid, self.at, self.table.figures[name], quantiles=False) for name in _REWARD_BANDS
            )
            first, middle, last = (quantile.mean for quantile in quantiles)
            return mean._replace(low=low.low, high=high.high, quantiles=(first, middle, last))
        if metric in TIMES:
            return banded(grid, self.at, trainer_time(self.table)[metric])
        if metric == RATE:
            tokens, seconds = self.table.figures["tokens"], self.table.figures["duration_s"]
            rates = np.divide(tokens, seconds, out=np.full(len(tokens), ABSENT), where=seconds > 0)
            return banded(grid, self.at, rates)
        return banded(grid, self.at, self.table.figures.get(metric, np.full(len(self.at), ABSENT)))

    def _living(self, role: str, grid: Grid) -> Bands:
        """Returns the number of living workers at each step of a bucket."""
        if role not in self.presence:
            return banded(grid, self.at, np.full(len(self.at), ABSENT))
        return banded(grid, self.at, self.presence[role].living(self.table.completed_ns))


async def course_of(
    connection: AsyncConnection, columns: StepColumns, experiment: UUID, metrics: Sequence[str], by: str
) -> Course:
    """Returns the course of an experiment, with the figures named by `metrics`, each perhaps several with commas.

    Raises NotFoundError.
    """
    identity = await fetch_one(
        connection,
        _Identity,
        """SELECT name, COALESCE(started_ns, submitted_ns) AS started_ns FROM experiments
        WHERE id = :experiment AND submitted_offset IS NOT NULL""",
        experiment=experiment.bytes,
    )
    if identity is None:
        raise NotFoundError(f"no experiment {experiment}")
    wanted = {name for text in metrics for name in (text, *text.split(","))}
    table = await columns.of(connection, experiment, _step_figures(wanted, by))
    scale = _Scale(table, identity.started_ns, by)
    presence = await presence_of(connection, experiment)
    held_out = await _evaluated(connection, experiment)
    points: dict[str, tuple[Column, Column]] = {}
    if any(name.startswith(HELD_OUT) for name in wanted):
        evals = await list_evals(connection, experiment)
        points = {name: (scale.at_steps(versions), scores) for name, (versions, scores) in _held_out(evals).items()}
    if LOADING in wanted:
        versions, seconds = await load_times(connection, experiment)
        points[LOADING] = scale.at_steps(versions), seconds
    marks = await marks_of(connection, experiment, table.published)
    return Course(
        id=str(experiment),
        name=identity.name,
        started_ns=identity.started_ns,
        table=table,
        at=scale.at,
        names=[*_COMMON_FIGURES, *table.names, *held_out, *(f"{WORKERS}{role}" for role in presence), LOADING, *TIMES],
        points=points,
        presence=presence,
        marks=marks,
        mark_positions=scale.at_marks(marks),
    )


def _step_figures(wanted: set[str], by: str) -> list[str]:
    """Returns the columns of steps needed for the figures and the positions."""
    needed = set(wanted)
    needed |= set(_REWARD_BANDS) if REWARD in wanted else set()
    needed |= {"tokens", "duration_s"} if RATE in wanted else set()
    needed |= {"tokens"} if by == "tokens" else set()
    needed |= set(TIME_COLUMNS) if needed & set(TIMES) else set()
    elsewhere = (HELD_OUT, WORKERS, LOADING, TIME)
    return sorted(name for name in needed if name not in (REWARD, RATE) and not name.startswith(elsewhere))


class _Scale:
    """Positions of steps and times in the unit of a series."""

    def __init__(self, table: StepTable, started_ns: int, by: str) -> None:
        self._table = table
        self._by = by
        self._started_ns = started_ns
        if by == "step":
            self.at = table.step.astype(np.float64)
        elif by == "tokens":
            self.at = np.cumsum(table.figures["tokens"])
        else:
            # A fork's shared steps took none of its own time; a clock set back must not turn the line.
            self.at = np.maximum.accumulate(np.maximum(0.0, (table.completed_ns - started_ns) / 1e9))

    def at_steps(self, steps: NDArray[np.int64]) -> Column:
        """Returns the positions of weight versions; version 0 and others before the first step are at its position."""
        if self._by == "step":
            return steps.astype(np.float64)
        if not len(self.at):
            return np.zeros(len(steps))
        number = np.searchsorted(self._table.step, steps, side="right") - 1
        return np.where(number >= 0, self.at[np.maximum(number, 0)], 0.0)

    def at_marks(self, marks: Sequence[CourseMark]) -> list[float]:
        """Returns the position of each mark: of its weight version, or of the newest step at its time."""
        times_ns = np.array([mark.time_ns for mark in marks], np.int64)
        if self._by == "time":
            return np.maximum(0.0, (times_ns - self._started_ns) / 1e9).tolist()  # type: ignore[no-any-return]
        ends_ns = np.maximum.accumulate(self._table.completed_ns)
        trained = np.searchsorted(ends_ns, times_ns, side="right") - 1
        steps = [
            mark.step if mark.step is not None else (int(self._table.step[number]) if number >= 0 else 0)
            for mark, number in zip(marks, trained, strict=True)
        ]
        return self.at_steps(np.array(steps, np.int64)).tolist()  # type: ignore[no-any-return]


def _held_out(evals: Sequence[EvalRow]) -> dict[str, tuple[NDArray[np.int64], Column]]:
    """Returns versions and figures of evaluations by name; a null figure is NaN."""
    columns: dict[str, list[tuple[int, float | None]]] = {}
    for row in evals:
        prefix = f"{HELD_OUT}{row.taskset}"
        columns.setdefault(prefix, []).append((row.version, row.score))
        for name, figure in row.metrics.items():
            columns.setdefault(f"{prefix}/{name}", []).append((row.version, figure))
    return {
        name: (
            np.array([version for version, _ in cells], np.int64),
            np.array([figure for _, figure in cells], np.float64),
        )
        for name, cells in columns.items()
    }


async def _evaluated(connection: AsyncConnection, experiment: UUID) -> list[str]:
    """Returns the names of the figures in the newest evaluations."""
    names: dict[str, None] = {}
    for share in await shares_of(connection, experiment):
        _, rows = await fetch_raw(
            connection,
            """SELECT taskset, metrics FROM evals WHERE experiment = :experiment AND version <= :last
            ORDER BY version DESC, completed_ns DESC LIMIT :newest""",
            experiment=share.experiment.bytes,
            last=share.last,
            newest=_NEWEST_EVALS,
        )
        for taskset, metrics in rows:
            figures: Mapping[str, object] = msgspec.json.decode(metrics or "{}")
            names |= dict.fromkeys((f"{HELD_OUT}{taskset}", *(f"{HELD_OUT}{taskset}/{name}" for name in figures)))
    return list(names)
