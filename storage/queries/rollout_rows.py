# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The rollouts of one group, and of one dataset row through all weight versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.books import COUNTED, FAILED
from rftd.storage.queries.counting import ABANDONED
from rftd.storage.queries.experiences import PREFIX, ROWS, ExperienceRow
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class FailedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout without an experience, and the reason."""

    rollout: int
    """Number of the rollout in its group, from 0."""
    code: str
    """Code of the error."""
    reason: str
    """Reason of the failure, in words."""


class PlanPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a batch: its step, and its position on the spine."""

    step: int
    """Number of the planned step."""
    executed: bool
    """True if a trainer executed the batch."""

    partition: int
    """Partition of the spine with the plan's record."""
    offset: int
    """Offset of the plan's record in the partition."""


# COALESCE, here and below: without it SQLite reads every row of the experiment by another index, in place of few ids.
_EXPERIMENT: Final = "COALESCE(e.experiment, e.id) = :experiment"
"""Condition for experiences of the experiment that are searched by their ids or groups."""


class _GroupId(msgspec.Struct, frozen=True):
    """A row with the id of a group."""

    id: str
    """Id of the group, as text."""


async def find_group(connection: AsyncConnection, experiment: UUID, text: str) -> UUID:
    """Returns an experiment's group of rollouts by id, or by a unique prefix of at least 8 digits.

    Raises NotFoundError; UsageError with the candidates for an ambiguous prefix, and for any other text.
    """
    prefix = text.replace("-", "").lower()
    if not PREFIX.fullmatch(prefix):
        raise UsageError(f"{text[:80]!r} is no id", field="group", fix="give 8 or more digits of a group's id")
    rows = await fetch(
        connection,
        _GroupId,
        """SELECT DISTINCT subject AS id FROM leases WHERE subject BETWEEN :low AND :high
        AND COALESCE(experiment, subject) = :experiment AND kind = 'task' LIMIT 8""",
        low=bytes.fromhex(prefix.ljust(32, "0")),
        high=bytes.fromhex(prefix.ljust(32, "f")),
        experiment=experiment.bytes,
    )
    ids = [row.id for row in rows]
    if not ids:
        raise NotFoundError(f"no group {text}", fix="an experience names its group: see rftd experiences show")
    if len(ids) > 1:
        raise UsageError(f"{text!r} names {len(ids)} groups", field="group", fix="use one of " + ", ".join(ids))
    return UUID(ids[0])


async def rollouts_of_group(connection: AsyncConnection, group: UUID, *, first: int, limit: int) -> list[ExperienceRow]:
    """Returns the experiences of a group from rollout `first` on, by rollout."""
    return await fetch(
        connection,
        ExperienceRow,
        f"{ROWS} AND e.group_id = :group AND e.rollout >= :first ORDER BY e.rollout LIMIT :limit",
        group=group.bytes,
        first=first,
        limit=limit,
    )


async def failed_of_group(connection: AsyncConnection, group: UUID, *, limit: int) -> list[FailedRollout]:
    """Returns the failed rollouts of a group, by rollout."""
    return await fetch(
        connection,
        FailedRollout,
        f"""SELECT e.rollout, COALESCE(e.failed_code, '') AS code, COALESCE(e.failed_reason, '') AS reason
        FROM experiences e WHERE e.group_id = :group AND {FAILED}
        ORDER BY e.rollout LIMIT :limit""",
        group=group.bytes,
        limit=limit,
    )


async def rollouts_of_row(
    connection: AsyncConnection, experiment: UUID, row: int, *, stage: int | None, limit: int, offset: int
) -> list[ExperienceRow]:
    """Returns the experiences of a dataset row, by their oldest weight version; rows count over a stage's tasksets."""
    of_stage = "" if stage is None else "AND l.stage = :stage"
    return await fetch(
        connection,
        ExperienceRow,
        f"""{ROWS} AND {_EXPERIMENT} AND e.group_id IN (SELECT l.subject FROM leases l
            WHERE l.experiment = :experiment AND l.kind = 'task' AND l.row_start = :row {of_stage})
        ORDER BY e.stage, e.oldest_version, e.produced_ns, e.id LIMIT :limit OFFSET :skip""",
        experiment=experiment.bytes,
        row=row,
        limit=limit,
        skip=offset,
        **({} if stage is None else {"stage": stage}),
    )


async def plan_of(connection: AsyncConnection, experience: UUID) -> PlanPlace | None:
    """Returns the plan of the last step planned with an experience; None without one."""
    rows = await fetch(
        connection,
        PlanPlace,
        f"""SELECT b.step, EXISTS (SELECT 1 FROM steps s
                WHERE s.experiment = b.experiment AND s.step = b.step AND s.batch = b.id) AS executed,
            b.planned_partition AS partition, b.planned_offset AS "offset" FROM experiences e, batch_items i
            JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
        WHERE e.id = :experience AND {COUNTED} AND i.experience = e.id
            AND COALESCE(b.experiment, b.id) = COALESCE(e.experiment, e.id) AND NOT {ABANDONED}
        ORDER BY b.step DESC LIMIT 1""",
        experience=experience.bytes,
    )
    return rows[0] if rows else None


async def experiences_with(
    connection: AsyncConnection, experiment: UUID, experiences: Sequence[UUID]
) -> list[ExperienceRow]:
    """Returns the experiences with these ids, in any order."""
    if not experiences:
        return []
    ids = {f"id{number}": id.bytes for number, id in enumerate(experiences)}
    return await fetch(
        connection,
        ExperienceRow,
        f"{ROWS} AND {_EXPERIMENT} AND e.id IN ({', '.join(f':{name}' for name in ids)})",
        experiment=experiment.bytes,
        **ids,
    )


async def rollouts_of_step(
    connection: AsyncConnection, experiment: UUID, step: int, *, limit: int = 4096
) -> list[ExperienceRow]:
    """Returns the experiences planned for a step, newest first."""
    return await fetch(
        connection,
        ExperienceRow,
        f"""{ROWS} AND {_EXPERIMENT} AND e.id IN (SELECT i.experience FROM batches b
            JOIN batch_items i ON i.batch = b.id AND i.planned_offset = b.planned_offset
            WHERE b.experiment = :experiment AND b.step = :step AND NOT {ABANDONED})
        ORDER BY e.produced_ns DESC, e.id LIMIT :limit""",
        experiment=experiment.bytes,
        step=step,
        limit=limit,
    )
