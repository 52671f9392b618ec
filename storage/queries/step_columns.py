# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`StepColumns`: figures of trained steps as numpy columns, cached because a counting step never changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops.decoding import numbers_decoder
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch_raw
from rftd.storage.queries.shares import Share, shares_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

Column = NDArray[np.float64]
"""One figure of consecutive steps or points, as an array of floating-point numbers."""

ABSENT: Final = np.inf
"""Stands in a column for a step without the figure; NaN stands for a recorded NaN or infinity, null in the tables."""
KEPT_NUMBERS: Final = 2_000_000
"""Maximum cached numbers of all columns, 8 bytes each; beyond it, the whole cache is dropped and read again."""
_STEPS_PER_DECODE: Final = 1000
"""Number of steps decoded from JSON at once: a text of about 1 MB."""
_BASE: Final = ("step", "completed_ns", "items", "tokens", "duration_s", "staleness_mean", "staleness_p95")
"""Columns of a step stored in the tables, in the order of the cached figures before the metrics."""
PLANNED: Final = "planned_ns"
"""Column of the time of a step's plan, Unix time in nanoseconds; no figure on offer."""
TABLE_FIGURES: Final = (*_BASE[2:], "staleness_max")
"""Figures of a step from columns of the tables, in the order of the query; other figures are the trainer's metrics."""


class StepTable(NamedTuple):
    """The counting steps of a history in order, as columns of equal length."""

    step: NDArray[np.int64]
    """Step numbers, ascending."""
    completed_ns: NDArray[np.int64]
    """End of each step, Unix time in nanoseconds."""
    figures: dict[str, Column]
    """The requested figures by name: `ABSENT` without the figure, NaN for a recorded NaN or infinity."""
    names: list[str]
    """Names of all metrics reported by the trainer in any stage."""
    published: NDArray[np.int64]
    """Versions published by the experiment itself, ascending, and the times of their publication: two rows."""


class _Cached(NamedTuple):
    """Cached columns of a share's steps up to `last`, valid for one generation of the history."""

    generation: int | None
    """Generation of the history at the time of reading; a newer one invalidates the columns."""
    last: int
    """The last step read; reading continues with the step after."""
    steps: NDArray[np.int64]
    """Step numbers, ascending."""
    completed_ns: NDArray[np.int64]
    """End of each step, Unix time in nanoseconds."""
    columns: dict[str, Column]
    """Figures of the steps by name, each as long as `steps`."""
    names: dict[str, None]
    """Names of all metrics read so far, as the keys of an ordered set."""
    published: NDArray[np.int64]
    """Published versions, ascending, and the times of publication in nanoseconds: two rows."""

    @property
    def numbers(self) -> int:
        """Number of cached numbers, for the bound on the whole cache."""
        return len(self.steps) * (2 + len(self.columns)) + self.published.size


class StepColumns:
    """Columns of some experiments' steps, read once and then only beyond the cached steps."""

    def __init__(self) -> None:
        self._cache: dict[tuple[UUID, int, int], _Cached] = {}

    async def of(self, connection: AsyncConnection, experiment: UUID, figures: Sequence[str]) -> StepTable:
        """Returns the steps of an experiment, ancestors' steps of a fork included, with these figures."""
        shares = [await self._grown(connection, share, figures) for share in await shares_of(connection, experiment)]
        return StepTable(
            step=np.concatenate([share.steps for share in shares]),
            completed_ns=np.concatenate([share.completed_ns for share in shares]),
            figures={name: np.concatenate([share.columns[name] for share in shares]) for name in figures},
            names=list(dict.fromkeys(name for share in shares for name in share.names)),
            published=shares[-1].published,
        )

    async def _grown(self, connection: AsyncConnection, share: Share, figures: Sequence[str]) -> _Cached:
        """Returns the columns of a share, read from the tables only for new steps and new figures."""
        _, [[generation]] = await fetch_raw(
            connection,
            "SELECT MAX(generation) FROM generations WHERE experiment = :experiment",
            experiment=share.experiment.bytes,
        )
        key = (share.experiment, share.first, share.last)
        cached = self._cache.pop(key, None)
        # A new generation executes steps again: cached steps may be void.
        if cached is None or cached.generation != generation or not cached.columns.keys() >= set(figures):
            wanted = dict.fromkeys(figures)
            if cached is not None and cached.generation == generation:
                wanted |= dict.fromkeys(cached.columns)
            none = np.empty(0, np.int64)
            empty = {name: np.empty(0, np.float64) for name in wanted}
            cached = _Cached(generation, share.first - 1, none, none, empty, {}, np.empty((2, 0), np.int64))
        rows = await _rows(connection, share.experiment, cached.last + 1, share.last)
        if rows:
            cached = _extended(cached, rows)
        if not share.inherited:
            cached = await _published(connection, share.experiment, cached)
        if sum(entry.numbers for entry in self._cache.values()) + cached.numbers > KEPT_NUMBERS:
            self._cache.clear()
        self._cache[key] = cached
        return cached


async def _rows(connection: AsyncConnection, experiment: UUID, first: int, last: int) -> list[Sequence[Any]]:
    """Returns the steps that count, in order, each in its newest generation."""
    _, rows = await fetch_raw(
        connection,
        f"""SELECT t.step, t.completed_ns, t.items, t.tokens, t.duration_s, b.staleness_mean, b.staleness_p95,
            b.staleness_max, b.decided_at_ns, t.stage, t.metrics
        FROM {EXECUTED} t LEFT JOIN batches b ON b.id = t.batch
        WHERE t.experiment = :experiment AND t.step BETWEEN :first AND :last ORDER BY t.step, t.generation""",
        experiment=experiment.bytes,
        first=first,
        last=last,
    )
    # Of several generations the last in order is the newest: a sub-query for each step would cost more.
    return [row for row, following in pairwise(rows) if row[0] != following[0]] + list(rows[-1:])


async def _published(connection: AsyncConnection, experiment: UUID, cached: _Cached) -> _Cached:
    """Returns the columns with further publications."""
    _, rows = await fetch_raw(
        connection,
        """SELECT version, MAX(published_ns) FROM weight_versions
        WHERE experiment = :experiment AND version > :newest AND published_offset IS NOT NULL
        GROUP BY version ORDER BY version""",
        experiment=experiment.bytes,
        newest=int(cached.published[0, -1]) if cached.published.size else 0,
    )
    if not rows:
        return cached
    further = np.array([tuple(row) for row in rows], np.int64).T
    return cached._replace(published=np.concatenate([cached.published, further], axis=1))


def _extended(cached: _Cached, rows: Sequence[Sequence[Any]]) -> _Cached:
    """Returns the columns with further steps at the end."""
    table_names = (*TABLE_FIGURES, PLANNED)
    trainer_names = [name for name in cached.columns if name not in table_names]
    columns = {name: [column] for name, column in cached.columns.items()}
    for start in range(0, len(rows), _STEPS_PER_DECODE):
        piece = rows[start : start + _STEPS_PER_DECODE]
        for name, column in _decoded([row[-1] for row in piece], trainer_names):
            columns[name].append(column)
        for number, name in enumerate(table_names, start=2):
            if name in columns:
                cells = [ABSENT if row[number] is None else row[number] for row in piece]
                columns[name].append(np.array(cells, np.float64))
    return cached._replace(
        last=rows[-1][0],
        steps=np.concatenate([cached.steps, np.array([row[0] for row in rows], np.int64)]),
        completed_ns=np.concatenate([cached.completed_ns, np.array([row[1] for row in rows], np.int64)]),
        columns={name: np.concatenate(pieces) for name, pieces in columns.items()},
        names=cached.names | dict.fromkeys(_names(rows)),
    )


def _names(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yields the metrics of the first step of each stage in `rows`, and of the last step."""
    stage = None
    for row in (*rows, None):
        if row is None or row[-2] != stage:
            shown = rows[-1] if row is None else row
            stage = shown[-2]
            yield from _metrics(shown[-1])


def _metrics(text: str | None) -> Mapping[str, Any]:
    """Returns the metrics of a step decoded from JSON; empty for a null column."""
    decoded: Mapping[str, Any] = msgspec.json.decode(text or "{}")
    return decoded


def _decoded(texts: Sequence[str | None], names: Sequence[str]) -> Iterator[tuple[str, Column]]:
    """Yields a column of each metric from JSON texts; other metrics are skipped without building objects."""
    if not names:
        return
    # One text: a call for each step costs as much as its decoding.
    decoded = numbers_decoder(tuple(names), ABSENT).decode(f"[{','.join(text or '{}' for text in texts)}]")
    for number, name in enumerate(names):
        field = f"f{number}"
        cells = [getattr(metrics, field) for metrics in decoded]
        yield name, np.array(cells, np.float64)  # a null becomes NaN
