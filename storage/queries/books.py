# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Which experiences count, as conditions on the columns of several events, and the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_LEASE_HELD: Final = """EXISTS (SELECT 1 FROM leases h WHERE h.id = {lease} AND h.worker = {row}.writer
    AND h.subject = {row}.group_id)"""
"""SQL condition template: the writer of `{row}` held the lease `{lease}`, issued for the group of the rollout."""
_NO_EARLIER_ANSWER: Final = f"""NOT EXISTS (SELECT 1 FROM experiences o
    WHERE o.group_id = e.group_id AND o.rollout = e.rollout AND o.writer <> e.writer
        AND (((o.produced_partition, o.produced_offset) < {{place}}
                AND {_LEASE_HELD.format(row="o", lease="o.lease")})
            OR ((o.failed_partition, o.failed_offset) < {{place}}
                AND {_LEASE_HELD.format(row="o", lease="o.failed_lease")})))"""
"""SQL condition template on `experiences e`: no explorer with a lease ended the rollout before the position `{place}`.
"""
_PRODUCED_AT: Final = "(e.produced_partition, e.produced_offset)"
"""SQL position in the log of the success of `experiences e`: partition and offset, comparable in order."""
_FAILED_AT: Final = "(e.failed_partition, e.failed_offset)"
"""SQL position in the log of the failure of `experiences e`: partition and offset, comparable in order."""

LEASE_HELD: Final = _LEASE_HELD.format(row="e", lease="e.lease")
"""SQL condition on `experiences e`: the writer held the lease answered by the record. Anybody with write access to the
topic can write such a record; without a lease it has no effect.
"""

MAPPED_ROLLOUTS: Final = 65_536
"""Maximum rollouts in a group's map of members; larger numbers are damage, and fit into no SUBSTR."""

PRODUCED: Final = f"""(e.produced_offset IS NOT NULL AND (e.failed_offset IS NULL OR {_PRODUCED_AT} < {_FAILED_AT})
    AND {LEASE_HELD} AND {_NO_EARLIER_ANSWER.format(place=_PRODUCED_AT)})"""
"""SQL condition on `experiences e`: the rollout's first terminal event by a holder of its lease was this experience."""

_FAILED: Final = f"""(e.failed_offset IS NOT NULL AND (e.produced_offset IS NULL OR {_FAILED_AT} < {_PRODUCED_AT})
    AND {_LEASE_HELD.format(row="e", lease="e.failed_lease")} AND {_NO_EARLIER_ANSWER.format(place=_FAILED_AT)})"""
"""SQL condition on `experiences e`: the rollout's first terminal event by a holder of its lease was this failure."""

ENDED: Final = f"(e.state IS NOT NULL OR {_FAILED})"
"""SQL condition on `experiences e`: this row is the rollout's end, successful or not."""

FAILED: Final = f"(e.state IS NULL AND {_FAILED})"
"""SQL condition on `experiences e`: this row is the rollout's end, a failure; the state stored by the projector tells
that no experience was.
"""

ITEM: Final = '(e.id, e.produced_partition, e.produced_offset) = (i.experience, i.partition, i."offset")'
"""SQL condition on `experiences e`: the experience named by `batch_items i`."""

COUNTED: Final = "e.state IS NOT NULL"
"""SQL condition on `experiences e`: `PRODUCED`, as stored by the projector with the state."""

GROUP: Final = "LEFT JOIN groups g ON g.id = e.group_id AND g.closed_offset IS NOT NULL"
"""SQL join of the closed group of `experiences e`."""

RETIRED: Final = "LEFT JOIN retirements r ON r.experience = e.id"
"""SQL join of the retirement of `experiences e`; columns of `r` are null for an experience not retired."""


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """Experiences of closed groups: produced = waiting + cooling + planned + retired."""

    produced: int
    """Number of members of closed groups, each an experience with effect."""
    waiting: int
    """Number of experiences of closed groups waiting for a first plan."""
    cooling: int
    """Number of experiences planned before and eligible again after a cooldown."""
    planned: int
    """Number of experiences in a batch, trained or about to be trained, without a further use to come."""
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
    """A row of the table `counts`: the number of experiences, groups or tasks of one kind and reason."""

    kind: str
    """State of the counted experiences, or one of the kinds listed at the column `kind` of `Counts`."""
    reason: str
    """Reason of a retirement, or code of a closed group; empty for kinds without reasons."""
    count: int
    """Number of counted experiences, groups, rollouts or tasks."""


async def books_of(connection: AsyncConnection, experiment: UUID) -> Books:
    """Returns the books of an experiment from the projector's counts. `produced` comes from the closed groups,
    everything else from the experiences.
    """
    from rftd.streams.folds.groups import GIVEN_UP  # late: the command line imports `Books` and nothing of the log

    rows = await fetch(
        connection,
        _Count,
        "SELECT kind, reason, count FROM counts WHERE experiment = :experiment",
        experiment=experiment.bytes,
    )
    by_kind: dict[str, dict[str, int]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, {})[row.reason] = row.count

    def total(kind: str) -> int:
        return sum(by_kind.get(kind, {}).values())

    produced = total("members")
    return Books(
        produced=produced,
        waiting=total("waiting"),
        cooling=total("cooling"),
        planned=total("planned"),
        retired=by_kind.get("retired", {}),
        retired_used=by_kind.get("retired_used", {}),
        balance=produced - total("waiting") - total("cooling") - total("planned") - total("retired"),
        open=total("open"),
        late=total("late"),
        failed_rollouts=total("failed"),
        given_up={code: count for code, count in by_kind.get("code", {}).items() if code in GIVEN_UP},
    )
