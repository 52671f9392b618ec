"""An experiment's history: steps, batches, evaluations; the origin and the fate of any one thing."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Cursor, Daemon, Int, Limit, Name, Offset, Step, Word, read
from rftd.ops.errors import NotFoundError
from rftd.storage.lineage.graph import CHILDREN, DEPTH, FORMS, LineageGraph
from rftd.storage.queries.batches import BatchRow, ItemRow, list_batches, list_items
from rftd.storage.queries.eval_pages import eval_page
from rftd.storage.queries.shares import ENDLESS, shares_of
from rftd.storage.queries.steps import EvalRow, StepRow, list_steps


class StepList(msgspec.Struct, frozen=True, kw_only=True):
    """Some training steps, in order, with the start of the next page."""

    items: list[StepRow]
    """Steps of the page, in order."""
    next: int | None
    """`first` of the next page; null at the end."""


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """One step's batch and its items, in training order."""

    batch: BatchRow
    """The batch."""
    items: list[ItemRow]
    """Items of the page, in order."""


class EvalList(msgspec.Struct, frozen=True, kw_only=True):
    """Some evaluations of the experiment, in the order of weight versions."""

    items: list[EvalRow]
    """Evaluations of the page, in order."""
    next: str | None = None
    """`cursor` of the next page; null at the end."""


@read("/v1/experiments/{name}/steps", StepList, tag="history")
async def steps(
    daemon: Daemon,
    name: Name,
    first: Offset = 0,
    last: Int = None,
    limit: Limit = 200,
    metrics: Annotated[list[str] | None, Meta(description="Only these metrics, repeated; without any, all.")] = None,
    after: After = None,
) -> StepList:
    """Training steps in order, with their metrics; of each step the newest generation. Inherited ones are marked.

    `/v1/series` has the course of a figure over many steps in a few points.
    """
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        bound = last if last is not None else ENDLESS
        rows = await list_steps(connection, id, first_step=first, last_step=bound, limit=limit + 1)
    if metrics is not None:
        chosen = frozenset(metrics)
        rows = [
            msgspec.structs.replace(row, metrics={key: row.metrics[key] for key in row.metrics if key in chosen})
            for row in rows
        ]
    return StepList(items=rows[:limit], next=rows[limit].step if len(rows) > limit else None)


@read("/v1/experiments/{name}/batches/{step}", BatchPage, tag="history")
async def batch(daemon: Daemon, name: Name, step: Step, after: After = None) -> BatchPage:
    """The items of one step's batch, in order; of a step shared with an ancestor, the ancestor's batch."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        # The last share has no end, so one is always found: beyond the fork's shared steps, its own.
        owner = next(share for share in await shares_of(connection, id) if step <= share.last)
        batches = await list_batches(connection, owner.experiment, first_step=step, last_step=step)
        if not batches:
            raise NotFoundError(f"no batch was planned for step {step}", field="step")
        return BatchPage(batch=batches[-1], items=await list_items(connection, UUID(batches[-1].id)))


@read("/v1/experiments/{name}/evals", EvalList, tag="history")
async def evals(
    daemon: Daemon, name: Name, taskset: Word = None, limit: Limit = 1000, cursor: Cursor = None, after: After = None
) -> EvalList:
    """Evaluations in the order of weight versions. Inherited ones are marked."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        page = await eval_page(connection, id, taskset=taskset, limit=limit, cursor=cursor)
    return EvalList(items=page.items, next=page.next)


# Bounds of one answer, held in memory as a whole.
MOST_CHILDREN: Final = 100_000
"""Maximum number of nodes below one node in a request for lineage."""
MOST_DEPTH: Final = 1000
"""Maximum number of levels in a request for lineage."""


@read("/v1/lineage", LineageGraph, tag="lineage", name="one")
async def lineage(
    daemon: Daemon,
    id: Annotated[str, Meta(min_length=1, max_length=500, description=f"What: {FORMS}.")],
    direction: Literal["both", "up", "down"] = "both",
    depth: Annotated[int, Meta(ge=0, le=MOST_DEPTH)] = DEPTH,
    children: Annotated[
        int, Meta(ge=1, le=MOST_CHILDREN, description="Maximum number of nodes of a kind under one node.")
    ] = CHILDREN,
    after: After = None,
) -> LineageGraph:
    """The origin of a thing (`up`) and its fate (`down`), as nodes and links."""
    from rftd.storage.lineage import walk

    async with daemon.read(after) as connection:
        return await walk.lineage(connection, id, direction=direction, depth=depth, children=children)
