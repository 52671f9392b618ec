# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Batches with their items, and the lineage of a weight version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.books import ITEM
from rftd.storage.queries.counting import ABANDONED
from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A planned batch, with size, staleness figures in versions, and state."""

    id: str
    """Id of the batch."""
    step: int
    """Weight version produced by training the batch, counted over the whole experiment."""
    stage: int
    """Number of the stage."""
    items: int
    """Number of experiences and dataset rows."""
    groups: int
    """Number of groups with an experience in the batch."""
    incomplete: bool
    """True if `max_read_timeout` passed before the batch was full."""
    staleness_mean: float | None
    """Mean staleness of the experiences, in versions; null without experiences."""
    staleness_p95: int | None
    """95th percentile of the experiences' staleness, in versions."""
    staleness_max: int | None
    """Maximum staleness of the experiences, in versions."""
    decided_at_ns: int
    """Time of the planner's decision, Unix time in nanoseconds."""
    state: str
    """`planned`, `trained` or `abandoned`."""
    abandoned_reason: str | None
    """Reason of the abandonment, in words; null for a batch not abandoned before training."""


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a batch: an experience with its task, or a dataset row."""

    item: int
    """Index of the item in the batch, from 0."""
    experience: str | None
    """Id of the experience; null for a dataset row."""
    group: str | None
    """Id of the experience's group; null for a dataset row."""
    rollout: int | None
    """Number of the rollout in its group, from 0."""
    reward: float | None
    """Reward of the experience."""
    response_tokens: int | None
    """Length of the response, in tokens."""
    oldest_version: int | None
    """The oldest weight version behind a token of the response."""
    staleness_versions: int | None
    """Staleness of the experience when planned, in versions."""
    use: int | None
    """Number of the experience's use, from 1."""
    digest: str | None
    row: int | None
    """The row of the taskset (experiences) or the dataset."""
    epoch: int | None
    """Epoch of the row."""
    partition: int | None
    """Partition of `rftd.experiences` with the experience's record."""
    offset: int | None
    """Offset of the experience's record in the partition."""


_BATCH: Final = f"""SELECT b.id, b.step, b.stage, b.items, b.groups, b.incomplete, b.staleness_mean, b.staleness_p95,
    b.staleness_max, b.decided_at_ns,
    CASE WHEN {ABANDONED} THEN b.abandoned_reason END AS abandoned_reason,
    CASE WHEN {ABANDONED} THEN 'abandoned'
        WHEN EXISTS (SELECT 1 FROM steps t WHERE t.experiment = b.experiment AND t.step = b.step AND t.batch = b.id)
        THEN 'trained' ELSE 'planned' END AS state
FROM batches b WHERE b.experiment = :experiment AND b.planned_offset IS NOT NULL"""
"""SQL of a `BatchRow` for each planned batch of an experiment, to be extended by further conditions."""


async def list_batches(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    first_step: int = 0,
    last_step: int = (1 << 62),
    limit: int = 1000,
) -> list[BatchRow]:
    """Returns the batches in the order of their steps, including abandoned ones."""
    return await fetch(
        connection,
        BatchRow,
        f"{_BATCH} AND b.step BETWEEN :first AND :last ORDER BY b.step, b.planned_offset LIMIT :limit",
        experiment=experiment.bytes,
        first=first_step,
        last=last_step,
        limit=limit,
    )


async def list_items(connection: AsyncConnection, batch: UUID) -> list[ItemRow]:
    """Returns the items of a batch in order; an experience's task row and epoch come from the lease."""
    # The join on the plan's position leaves out items of a second plan with an equal id, a plan without effect.
    return await fetch(
        connection,
        ItemRow,
        f"""SELECT i.item, i.experience, i.group_id AS "group", e.rollout, e.reward, e.response_tokens,
            e.oldest_version, i.staleness_versions, i.use, i.digest, COALESCE(i.row, l.row_start) AS row,
            COALESCE(i.epoch, l.epoch) AS epoch, i.partition, i."offset" AS "offset"
        FROM batch_items i
        JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
        LEFT JOIN experiences e ON {ITEM}
        LEFT JOIN leases l ON l.id = e.lease
        WHERE i.batch = :batch ORDER BY i.item""",
        batch=batch.bytes,
    )
