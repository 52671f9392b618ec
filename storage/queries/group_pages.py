# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Pages of closed groups, a task each, in the order of their sequence numbers, after a cursor; tasks of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.storage.queries.cursor import cursor_of, key_of
from rftd.storage.queries.experiences import TaskRow
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

GROUP_ORDERS: Final = {"oldest": ("", ">"), "newest": (" DESC", "<")}
"""SQL direction and comparison with the cursor's key, by the name of the order."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task with its closed group of rollouts."""

    id: str
    """Id of the group."""
    stage: int
    """Number of the stage."""
    sequence: int
    """The task's number in its stage, from 0."""
    row: int | None
    """The row number over all tasksets of the stage."""
    epoch: int | None
    """Epoch of the row; null if no lease of the group is in the tables."""
    members: int
    """Number of experiences in the group, each a success."""
    failed: int
    """Number of failed rollouts."""
    reward_mean: float | None
    """Mean reward of the members; null without members."""
    code: str | None
    """Code of the failure of a task without enough successful rollouts."""
    reason: str | None
    """Reason of the failure, in words."""
    closed_ns: int
    """Time of the close, Unix time in nanoseconds."""


class GroupPage(NamedTuple):
    """Some groups in order, and the cursor of the next page; None at the end."""

    items: list[GroupRow]
    """Groups of the page, in order."""
    next: str | None
    """Cursor of the next page; None at the end."""


async def list_groups(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    stage: int | None = None,
    order: str = "newest",
    limit: int = 50,
    cursor: str | None = None,
) -> GroupPage:
    """Returns a page of closed groups by stage and sequence. Raises CursorError."""
    name = f"groups of {experiment}"
    direction, beyond = GROUP_ORDERS[order]
    conditions = ["g.experiment = :experiment", "g.closed_offset IS NOT NULL"]
    parameters: dict[str, Any] = {"experiment": experiment.bytes}
    if stage is not None:
        conditions.append("g.stage = :stage")
        parameters["stage"] = stage
    if cursor is not None:
        after = key_of(cursor, name, order, (int, int, str))
        conditions.append(f"(g.stage, g.sequence, g.id) {beyond} (:after_stage, :after_sequence, :after_id)")
        parameters |= {"after_stage": after[0], "after_sequence": after[1], "after_id": UUID(str(after[2])).bytes}
    rows = await fetch(
        connection,
        GroupRow,
        f"""SELECT g.id, g.stage, g.sequence, l.row_start AS "row", l.epoch, g.members, g.failed, g.reward_mean,
            NULLIF(g.code, '') AS code, NULLIF(g.reason, '') AS reason, g.closed_ns
        FROM (SELECT * FROM groups g WHERE {" AND ".join(conditions)}
            ORDER BY g.stage{direction}, g.sequence{direction}, g.id{direction} LIMIT :limit) g
        LEFT JOIN leases l ON l.id = (SELECT t.id FROM leases t WHERE t.subject = g.id AND t.kind = 'task'
            ORDER BY t.leased_ns, t.id LIMIT 1)
        ORDER BY g.stage{direction}, g.sequence{direction}, g.id{direction}""",
        limit=limit + 1,
        **parameters,
    )
    if len(rows) <= limit:
        return GroupPage(rows, None)
    last = rows[limit - 1]
    return GroupPage(rows[:limit], cursor_of(name, order, (last.stage, last.sequence, last.id)))


class GroupTask(TaskRow, frozen=True, kw_only=True):
    """The task of a group, closed or not."""

    group: str
    """Id of the group."""
    stage: int
    """Number of the stage."""


async def tasks_of(connection: AsyncConnection, experiment: UUID, groups: Sequence[UUID]) -> list[GroupTask]:
    """Returns the tasks of groups, in any order; groups without a lease are left out."""
    if not groups:
        return []
    ids = {f"id{number}": id.bytes for number, id in enumerate(groups)}
    return await fetch(
        connection,
        GroupTask,
        f"""SELECT l.subject AS "group", l.stage, l.sequence, l.row_start AS "row", l.epoch FROM leases l
        WHERE l.subject IN ({", ".join(f":{name}" for name in ids)}) AND COALESCE(l.experiment, l.subject) = :experiment
            AND l.kind = 'task' AND l.id = (SELECT t.id FROM leases t WHERE t.subject = l.subject AND t.kind = 'task'
                ORDER BY t.leased_ns, t.id LIMIT 1)""",
        experiment=experiment.bytes,
        **ids,
    )
