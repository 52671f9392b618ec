"""Tasks with too few successful rollouts, as folded by `rftd.streams.folds.failed_tasks`, from the tables."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.streams.folds.failed_tasks import STAGE_ENDED, FailedTask, Try
from rftd.streams.folds.letters import RecordPlace
from rftd.streams.log.topics import TASKS

_GROUPS_PER_QUERY: Final = 500
"""Maximum number of groups in one query for leases."""
MOST: Final = 10_000
"""Maximum number of failed tasks read, the newest first; the log has the older ones."""
_GROUPS: Final = """SELECT id, experiment, stage, sequence, members, failed, code, reason, closed_ns, closed_partition,
    closed_offset FROM groups WHERE failed > 0 AND (reason IS NULL OR reason <> :stage_ended)
    ORDER BY closed_ns DESC, closed_partition DESC, closed_offset DESC LIMIT :most"""
"""SQL of the newest closed groups with a failed rollout, except groups closed by the end of their stage."""
_LEASES: Final = """SELECT subject, row_start, epoch, attempt, slot, worker, leased_ns, expired_reason FROM leases
    WHERE subject IN :groups AND kind = 'task' AND leased_offset IS NOT NULL ORDER BY subject, attempt"""
"""SQL of the leases of groups, in the order of attempts."""


async def failed_tasks(connection: AsyncConnection) -> list[FailedTask]:
    """Returns every group closed with failed rollouts, newest first; its stage tells whether its members suffice."""
    closed = (await connection.execute(text(_GROUPS), {"stage_ended": STAGE_ENDED, "most": MOST})).all()
    leases: dict[bytes, list[Any]] = {}
    ids = [bytes(row.id) for row in closed]
    statement = text(_LEASES).bindparams(bindparam("groups", expanding=True))
    for start in range(0, len(ids), _GROUPS_PER_QUERY):
        for lease in await connection.execute(statement, {"groups": ids[start : start + _GROUPS_PER_QUERY]}):
            leases.setdefault(bytes(lease.subject), []).append(lease)
    return [_task(row, leases.get(bytes(row.id), [])) for row in closed]


def _task(row: Any, leases: list[Any]) -> FailedTask:
    """Returns a failed task from the row of its group and the rows of its leases, in the order of attempts."""
    return FailedTask(
        experiment=UUID(bytes=bytes(row.experiment)),
        group=UUID(bytes=bytes(row.id)),
        stage=row.stage,
        sequence=row.sequence,
        row=leases[-1].row_start if leases else -1,
        epoch=leases[-1].epoch if leases else -1,
        members=row.members,
        failed=row.failed,
        code=row.code or "",
        reason=row.reason or "",
        closed_ns=row.closed_ns,
        place=RecordPlace(TASKS, row.closed_partition, row.closed_offset),
        tries=tuple(
            Try(
                attempt=lease.attempt,
                slot=lease.slot,
                worker=str(UUID(bytes=bytes(lease.worker))),
                leased_ns=lease.leased_ns,
                ended=lease.expired_reason or "",
            )
            for lease in leases
        ),
    )


_TRIED: Final = """SELECT COUNT(*) FROM groups WHERE experiment = :experiment AND stage = :stage
    AND sequence < :added AND closed_offset IS NOT NULL"""
"""SQL of the number of closed groups of a stage with a sequence number below `:added`."""


async def tried_tasks(connection: AsyncConnection, experiment: UUID, *, stage: int, added: int) -> int:
    """Returns how many of the `added` tasks have a closed group; a batch that is filled up repeats the first tasks."""
    count = await connection.execute(text(_TRIED), {"experiment": experiment.bytes, "stage": stage, "added": added})
    return int(count.scalar_one())
