# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The state of every experience, derived from the columns of several events, and the books (rule 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import ABANDONED
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_HELD: Final = """EXISTS (SELECT 1 FROM leases h WHERE h.id = {lease} AND h.worker = {row}.writer
    AND h.subject = {row}.group_id)"""
_NONE_BEFORE: Final = f"""NOT EXISTS (SELECT 1 FROM experiences o
    WHERE o.group_id = e.group_id AND o.rollout = e.rollout AND o.writer <> e.writer
        AND (((o.produced_partition, o.produced_offset) < {{place}}
                AND {_HELD.format(row="o", lease="o.lease")})
            OR ((o.failed_partition, o.failed_offset) < {{place}}
                AND {_HELD.format(row="o", lease="o.failed_lease")})))"""
_PRODUCED_AT: Final = "(e.produced_partition, e.produced_offset)"
_FAILED_AT: Final = "(e.failed_partition, e.failed_offset)"

HELD: Final = _HELD.format(row="e", lease="e.lease")
"""SQL condition on `experiences e`: the writer held the lease answered by the record. Anybody with write access to the
topic can write such a record; without a lease it has no effect.
"""

MAPPED_ROLLOUTS: Final = 65_536
"""Maximum rollouts in a group's map of members; larger numbers are damage, and fit into no SUBSTR."""

PRODUCED: Final = f"""(e.produced_offset IS NOT NULL AND (e.failed_offset IS NULL OR {_PRODUCED_AT} < {_FAILED_AT})
    AND {HELD} AND {_NONE_BEFORE.format(place=_PRODUCED_AT)})"""
"""SQL condition on `experiences e`: the rollout's first terminal event by a holder of its lease was this experience."""

ENDED: Final = f"""({PRODUCED} OR (e.failed_offset IS NOT NULL
    AND (e.produced_offset IS NULL OR {_FAILED_AT} < {_PRODUCED_AT})
    AND {_HELD.format(row="e", lease="e.failed_lease")} AND {_NONE_BEFORE.format(place=_FAILED_AT)}))"""
"""SQL condition on `experiences e`: this row is the rollout's end, successful or not."""

ITEM: Final = '(e.id, e.produced_partition, e.produced_offset) = (i.experience, i.partition, i."offset")'
"""SQL condition on `experiences e`: the experience named by `batch_items i`."""

GROUP: Final = "LEFT JOIN groups g ON g.id = e.group_id AND g.closed_offset IS NOT NULL"
"""SQL join of the closed group of `experiences e`."""

RETIRED: Final = "LEFT JOIN retirements r ON r.experience = e.id"

USES: Final = f"""FROM batch_items i JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
    WHERE i.experience = e.id AND b.experiment = e.experiment AND NOT {ABANDONED}"""
"""SQL source of the batches that contain `experiences e`."""

STATE: Final = f"""CASE WHEN r.experience IS NOT NULL THEN 'retired'
    WHEN EXISTS (SELECT 1 {USES} AND b.max_uses > 0 AND i.use >= b.max_uses) THEN 'planned'
    WHEN EXISTS (SELECT 1 {USES}) THEN 'cooling'
    WHEN g.id IS NULL THEN 'open'
    WHEN CASE WHEN e.rollout < {MAPPED_ROLLOUTS}
        THEN SUBSTR(g.member_map, CAST(e.rollout + 1 AS INTEGER), 1) END = '1' THEN 'waiting'
    ELSE 'late' END"""
"""SQL expression of an experience's state. `cooling`: planned, and may be planned again; `open`: its group is not
closed yet; `late`: its group was closed without it, so it has no effect.
"""


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """Experiences of closed groups: produced = waiting + cooling + planned + retired."""

    produced: int
    waiting: int
    cooling: int
    planned: int
    retired: dict[str, int]
    """Retired experiences by reason."""
    retired_used: dict[str, int]
    """Retired experiences trained before, by reason: with reuse."""
    balance: int
    """produced - waiting - cooling - planned - retired; zero if the books balance."""
    open: int
    """Experiences of groups not closed yet; not counted above."""
    late: int
    """Experiences produced after their group was closed or given up without them; without effect."""
    failed_rollouts: int
    """Failed rollouts, including those of given-up tasks."""
    given_up: dict[str, int]
    """Tasks closed without a fault of their own, by the code of the reason."""


class _Count(msgspec.Struct, frozen=True):
    state: str
    reason: str | None
    count: int
    used: int


class _Totals(msgspec.Struct, frozen=True):
    members: int
    failed: int


class _GivenUp(msgspec.Struct, frozen=True):
    code: str
    tasks: int


async def books_of(connection: AsyncConnection, experiment: UUID) -> Books:
    """Returns the books of an experiment. `produced` comes from the closed groups, everything else from the
    experiences.
    """
    from rftd.streams.folds.groups import GIVEN_UP  # late: the command line imports `Books` and nothing of the log

    # CAST: Postgres sums 64-bit integers as numeric, returned by the driver as Decimal.
    counts = await fetch(
        connection,
        _Count,
        f"""SELECT state, reason, COUNT(*) AS count, CAST(SUM(used) AS BIGINT) AS used FROM (
            SELECT {STATE} AS state, r.reason AS reason, CASE WHEN r.uses > 0 THEN 1 ELSE 0 END AS used
            FROM experiences e {GROUP} {RETIRED} WHERE e.experiment = :experiment AND {PRODUCED}) s
        GROUP BY state, reason""",
        experiment=experiment.bytes,
    )
    totals = await fetch(
        connection,
        _Totals,
        """SELECT CAST(COALESCE(SUM(members), 0) AS BIGINT) AS members,
            CAST(COALESCE(SUM(failed), 0) AS BIGINT) AS failed
        FROM groups WHERE experiment = :experiment""",
        experiment=experiment.bytes,
    )
    codes = {f"code{number}": code for number, code in enumerate(sorted(GIVEN_UP))}
    given_up = await fetch(
        connection,
        _GivenUp,
        f"""SELECT code, COUNT(*) AS tasks FROM groups WHERE experiment = :experiment
            AND code IN ({", ".join(f":{name}" for name in codes)}) GROUP BY code""",
        experiment=experiment.bytes,
        **codes,
    )
    by_state: dict[str, int] = {}
    retired: dict[str, int] = {}
    retired_used: dict[str, int] = {}
    for row in counts:
        by_state[row.state] = by_state.get(row.state, 0) + row.count
        if row.state == "retired":
            retired[row.reason or ""] = row.count
            if row.used:
                retired_used[row.reason or ""] = row.used
    waiting, cooling, planned = (by_state.get(state, 0) for state in ("waiting", "cooling", "planned"))
    return Books(
        produced=totals[0].members,
        waiting=waiting,
        cooling=cooling,
        planned=planned,
        retired=retired,
        retired_used=retired_used,
        balance=totals[0].members - waiting - cooling - planned - sum(retired.values()),
        open=by_state.get("open", 0),
        late=by_state.get("late", 0),
        failed_rollouts=totals[0].failed,
        given_up={row.code: row.tasks for row in given_up},
    )
