"""Selection of an evaluation among many, and the log positions of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.rows import fetch, fetch_one
from rftd.storage.queries.steps import EvalRow, list_evals

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class ScorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The position in `rftd.experiences` of the scores of a range of rows."""

    row_start: int
    """The first row of the range."""
    partition: int
    """Partition of `rftd.experiences` with the record."""
    offset: int
    """Offset of the record in the partition."""


class _Holder(msgspec.Struct, frozen=True):
    """A row with a lease of an evaluation and its worker."""

    lease: str
    """Id of the lease, as text."""
    worker: str
    """Id of the worker, as text."""


class _JobFolder(msgspec.Struct, frozen=True):
    """A row with the folder of an experiment."""

    job_dir: str | None
    """Path of the experiment's folder; None if the submission is not in the tables."""


async def evaluations_of(connection: AsyncConnection, experiment: UUID, *, taskset: str | None) -> list[EvalRow]:
    """Returns the evaluations on a taskset, by version, only the last of each version.

    Raises NotFoundError if there is none, UsageError if there are several tasksets and none is named.
    """
    rows = await list_evals(connection, experiment, taskset=taskset)
    names = list(dict.fromkeys(row.taskset for row in rows))
    if not names:
        of = "nothing was evaluated yet" if taskset is None else f"no evaluation on {taskset!r}"
        raise NotFoundError(of, field="taskset", fix="see rftd evals NAME")
    if len(names) > 1:
        raise UsageError("there are several tasksets", field="taskset", fix="name one of " + ", ".join(names))
    return list({row.version: row for row in rows}.values())


def evaluation_of(rows: Sequence[EvalRow], version: int | None, *, field: str = "version") -> EvalRow:
    """Returns the evaluation of a version; of the newest version for None. Raises NotFoundError."""
    if version is None:
        return rows[-1]
    for row in rows:
        if row.version == version:
            return row
    versions = ", ".join(str(row.version) for row in rows)
    raise NotFoundError(
        f"version {version} was not evaluated on {rows[0].taskset!r}", field=field, fix=f"known: {versions}"
    )


async def folder_of(connection: AsyncConnection, evaluation: str) -> str | None:
    """Returns the folder of the evaluated experiment, possibly an ancestor of the requested experiment."""
    row = await fetch_one(
        connection,
        _JobFolder,
        "SELECT x.job_dir FROM evals v JOIN experiments x ON x.id = v.experiment WHERE v.id = :id",
        id=UUID(evaluation).bytes,
    )
    return None if row is None else row.job_dir


async def score_places(connection: AsyncConnection, evaluation: str) -> list[ScorePlace]:
    """Returns the positions of an evaluation's scores by rows: for each range, the first score written by the lease's
    holder.
    """
    return await fetch(
        connection,
        ScorePlace,
        """SELECT s.row_start AS row_start, MIN(s.scored_partition) AS partition, MIN(s.scored_offset) AS "offset"
        FROM eval_scores s JOIN leases h ON h.id = s.lease AND h.worker = s.writer AND h.subject = s.eval
        WHERE s.eval = :id GROUP BY s.row_start ORDER BY s.row_start""",
        id=UUID(evaluation).bytes,
    )


async def lease_holders(connection: AsyncConnection, evaluation: str) -> dict[UUID, UUID]:
    """Returns the worker of each lease of an evaluation."""
    rows = await fetch(
        connection,
        _Holder,
        "SELECT id AS lease, worker FROM leases WHERE subject = :id AND kind = 'eval'",
        id=UUID(evaluation).bytes,
    )
    return {UUID(row.lease): UUID(row.worker) for row in rows}
