"""Pages of checkpoints after a cursor, and the position of a checkpoint's record in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.storage.queries.cursor import cursor_of, key_of
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.weights import CHECKPOINTS, PRESENT, CheckpointRow

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

CHECKPOINT_ORDERS: Final = {"oldest": ("", ">"), "newest": (" DESC", "<")}
"""SQL direction and comparison with the cursor's key, by the name of the order."""


class CheckpointPage(NamedTuple):
    """Some checkpoints in order, and the cursor of the next page; None at the end."""

    items: list[CheckpointRow]
    """Checkpoints of the page, in order."""
    next: str | None
    """Cursor of the next page; None at the end."""


class CheckpointRecord(NamedTuple):
    """A checkpoint with the position of its record in `rftd.checkpoints`."""

    row: CheckpointRow
    """The checkpoint."""
    partition: int
    """Partition of `rftd.checkpoints` with the record."""
    offset: int
    """Offset of the record in the partition."""


class _Position(msgspec.Struct, frozen=True):
    """A row with the position of a checkpoint's record."""

    partition: int
    """Partition of `rftd.checkpoints` with the record."""
    offset: int
    """Offset of the record in the partition."""


async def page_checkpoints(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    existing: bool = True,
    order: str = "newest",
    limit: int = 50,
    cursor: str | None = None,
) -> CheckpointPage:
    """Returns a page of checkpoints by step and generation, without deleted ones if `existing`. Raises CursorError."""
    name = f"checkpoints of {experiment}"
    direction, beyond = CHECKPOINT_ORDERS[order]
    parameters: dict[str, Any] = {"experiment": experiment.bytes}
    conditions = PRESENT if existing else ""
    if cursor is not None:
        step, generation = key_of(cursor, name, order, (int, int))
        conditions += f" AND (a.step, a.generation) {beyond} (:step, :generation)"
        parameters |= {"step": step, "generation": generation}
    rows = await fetch(
        connection,
        CheckpointRow,
        f"{CHECKPOINTS} {conditions} ORDER BY a.step{direction}, a.generation{direction} LIMIT :limit",
        limit=limit + 1,
        **parameters,
    )
    if len(rows) <= limit:
        return CheckpointPage(rows, None)
    last = rows[limit - 1]
    return CheckpointPage(rows[:limit], cursor_of(name, order, (last.step, last.generation)))


async def checkpoint_of(
    connection: AsyncConnection, experiment: UUID, step: int, generation: int | None = None
) -> CheckpointRecord:
    """Returns the checkpoint of a step, by default of the newest generation. Raises NotFoundError."""
    chosen = "" if generation is None else "AND a.generation = :generation"
    parameters = {} if generation is None else {"generation": generation}
    where = f"{chosen} AND a.step = :step ORDER BY a.generation DESC LIMIT 1"
    rows = await fetch(
        connection, CheckpointRow, f"{CHECKPOINTS} {where}", experiment=experiment.bytes, step=step, **parameters
    )
    if not rows:
        raise NotFoundError(
            f"no checkpoint of step {step}", field="step", fix="see /v1/experiments/NAME/checkpoints for the steps"
        )
    [position] = await fetch(
        connection,
        _Position,
        """SELECT committed_partition AS partition, committed_offset AS "offset" FROM checkpoints
        WHERE experiment = :experiment AND step = :step AND generation = :generation""",
        experiment=experiment.bytes,
        step=step,
        generation=rows[0].generation,
    )
    return CheckpointRecord(rows[0], position.partition, position.offset)
