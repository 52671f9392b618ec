"""The states and the books by a scan of every experience: the oracle of what the projector counts."""

from __future__ import annotations

from collections import Counter
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.storage.queries.books import FAILED, GROUP, MAPPED_ROLLOUTS, PRODUCED, RETIRED, Books
from rftd.storage.queries.counting import ABANDONED
from rftd.storage.queries.stage_counts import length_key
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
COUNTED: Final = f"""SELECT s.experiment, s.stage,
    CASE WHEN s.uses > 0 THEN 'trained' WHEN s.state = 'retired' THEN 'dropped' ELSE s.state END AS kind,
    COALESCE(s.reason, '') AS reason, s.prompt_tokens, s.response_tokens
FROM ({ROWS.replace("SELECT e.experiment,", "SELECT e.stage, e.prompt_tokens, e.response_tokens, e.experiment,", 1)}) s
UNION ALL SELECT failed_experiment, failed_stage, 'failed_rollouts', COALESCE(failed_code, ''), 0, 0
    FROM experiences e WHERE {FAILED}
"""
CLOSED: Final = """SELECT experiment, stage, members, failed, COALESCE(code, '') AS code FROM groups
    WHERE closed_offset IS NOT NULL"""
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


StageCounted = dict[tuple[object, ...], list[int]]
"""Number, prompt tokens and response tokens by experiment, stage, kind, reason and length."""


async def scanned_stage_counts(connection: AsyncConnection) -> StageCounted:
    """The counts of every stage, by a scan of the experiences and groups."""
    counts: StageCounted = {}

    def add(*key: object, change: tuple[int, int, int]) -> None:
        sums = counts.setdefault(key, [0, 0, 0])
        sums[:] = [number + more for number, more in zip(sums, change, strict=True)]

    for row in await connection.execute(text(COUNTED)):
        with_length = row.kind in ("trained", "dropped", "late")
        reason = {"dropped": row.reason or "retired", "late": "late", "failed_rollouts": row.reason}.get(row.kind, "")
        length = length_key(row.response_tokens) if with_length else 0
        change = 1, row.prompt_tokens, row.response_tokens
        add(row.experiment, row.stage, row.kind, reason[:500], length, change=change)
    for group in await connection.execute(text(CLOSED)):
        add(group.experiment, group.stage, "members", "", 0, change=(group.members, 0, 0))
        add(group.experiment, group.stage, "failed", "", 0, change=(group.failed, 0, 0))
        if not group.members:
            add(group.experiment, group.stage, "empty", group.code[:500], 0, change=(1, 0, 0))
    return {key: sums for key, sums in counts.items() if sums[0]}


async def stored_stage_counts(connection: AsyncConnection) -> StageCounted:
    """The counts of every stage in the tables."""
    rows = await connection.execute(text("SELECT * FROM stage_counts"))
    return {tuple(row[:5]): list(row[5:]) for row in rows}
