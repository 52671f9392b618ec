"""The states and the books by a scan of every experience: the oracle of what the projector counts."""

from __future__ import annotations

from collections import Counter
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.storage.queries.books import GROUP, MAPPED_ROLLOUTS, PRODUCED, RETIRED, Books
from rftd.storage.queries.counting import ABANDONED
from rftd.streams.folds.groups import GIVEN_UP

USES: Final = f"""FROM batch_items i JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
    WHERE i.experience = e.id AND b.experiment = e.experiment AND NOT {ABANDONED}"""
STATE: Final = f"""CASE WHEN r.experience IS NOT NULL THEN 'retired'
    WHEN EXISTS (SELECT 1 {USES} AND b.max_uses > 0 AND i.use >= b.max_uses) THEN 'planned'
    WHEN EXISTS (SELECT 1 {USES}) THEN 'cooling'
    WHEN g.id IS NULL THEN 'open'
    WHEN CASE WHEN e.rollout < {MAPPED_ROLLOUTS}
        THEN SUBSTR(g.member_map, CAST(e.rollout + 1 AS INTEGER), 1) END = '1' THEN 'waiting'
    ELSE 'late' END"""
ROWS: Final = f"""SELECT e.experiment, {STATE} AS state, r.reason,
    CASE WHEN r.experience IS NOT NULL THEN CASE WHEN r.uses > 0 THEN 1 ELSE 0 END END AS used,
    (SELECT MAX(b.step) {USES}) AS step, (SELECT MAX(i.staleness_versions) {USES}) AS staleness_versions,
    (SELECT COUNT(*) {USES}) AS uses, e.group_id, e.rollout, e.writer
FROM experiences e {GROUP} {RETIRED} WHERE {PRODUCED}"""
STORED: Final = """SELECT experiment, state, retired_reason, retired_used, step, staleness_versions, uses, group_id,
    rollout, writer FROM experiences WHERE state IS NOT NULL"""
ORDER: Final = " ORDER BY group_id, rollout, writer"


async def scanned_states(connection: AsyncConnection) -> list[tuple[object, ...]]:
    """The states that a scan finds."""
    return [tuple(row) for row in await connection.execute(text(ROWS + ORDER))]


async def stored_states(connection: AsyncConnection) -> list[tuple[object, ...]]:
    """The states in the tables."""
    return [tuple(row) for row in await connection.execute(text(STORED + ORDER))]


async def scanned_books(connection: AsyncConnection, experiment: UUID) -> Books:
    """The books, by a scan of the experiences and groups of an experiment."""
    states: Counter[str] = Counter()
    retired: Counter[str] = Counter()
    retired_used: Counter[str] = Counter()
    for row in await connection.execute(text(f"{ROWS} AND e.experiment = :id"), {"id": experiment.bytes}):
        states[row.state] += 1
        if row.state == "retired":
            retired[row.reason or ""] += 1
            retired_used[row.reason or ""] += row.used
    members = failed = 0
    given_up: Counter[str] = Counter()
    groups = "SELECT members, failed, code FROM groups WHERE experiment = :id"
    for group in await connection.execute(text(groups), {"id": experiment.bytes}):
        members += group.members or 0
        failed += group.failed or 0
        if group.code in GIVEN_UP:
            given_up[group.code] += 1
    return Books(
        produced=members,
        waiting=states["waiting"],
        cooling=states["cooling"],
        planned=states["planned"],
        retired=dict(retired),
        retired_used={reason: count for reason, count in retired_used.items() if count},
        balance=members - states["waiting"] - states["cooling"] - states["planned"] - states["retired"],
        open=states["open"],
        late=states["late"],
        failed_rollouts=failed,
        given_up=dict(given_up),
    )
