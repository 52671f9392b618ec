"""Writes what was folded: positions first, then rows, in the caller's transaction; and reads them back at a start."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import insert, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import ConflictError
from rftd.storage.fold import FenceState, Folded
from rftd.storage.tables.base import table_of
from rftd.storage.tables.progress import Fences, Positions
from rftd.storage.upserts import Upsert
from rftd.streams.chain import Heads, Mark
from rftd.streams.topics import Partition


class TableWriter:
    """Holds the compiled statement of each upsert."""

    def __init__(self) -> None:
        self._statements: dict[Upsert, str] = {}

    async def write(self, connection: AsyncConnection, folded: Folded) -> None:
        """Moves the positions and writes the rows. Raises ConflictError if another projector moved them meanwhile."""
        # The positions come first: their rows are the lock that a second projector on this database meets.
        for partition, mark in sorted(folded.after.items()):
            await _move(connection, partition, folded.before[partition], mark)
        for upsert, rows in folded.rows.items():
            statement = self._statements.get(upsert)
            if statement is None:
                statement = self._statements[upsert] = upsert.statement(connection.dialect)
            await connection.exec_driver_sql(statement, rows)


async def _move(connection: AsyncConnection, partition: Partition, before: Mark, after: Mark) -> None:
    table = table_of(Positions)
    values = {"next_offset": after.next_offset, "chain": after.chain}
    key = (table.c.stream == partition.stream) & (table.c.partition == partition.number)
    result: CursorResult[object] = await connection.execute(
        update(table).where(key, table.c.next_offset == before.next_offset).values(values)
    )
    if result.rowcount == 1:
        return
    if before.next_offset == 0 and await connection.scalar(select(table.c.next_offset).where(key)) is None:
        await connection.execute(insert(table).values(stream=partition.stream, partition=partition.number, **values))
        return
    raise ConflictError(
        f"another process moved the projections' position in {partition} from {before.next_offset}",
        fix="let one daemon use this database",
    )


async def read_positions(connection: AsyncConnection) -> Heads:
    """Where the projections stand."""
    table = table_of(Positions)
    rows = await connection.execute(select(table.c.stream, table.c.partition, table.c.next_offset, table.c.chain))
    return {Partition(stream, number): Mark(next_offset, bytes(chain)) for stream, number, next_offset, chain in rows}


async def read_fences(connection: AsyncConnection) -> list[FenceState]:
    """The owners of roles at those positions."""
    table = table_of(Fences)
    columns = (table.c.stream, table.c.partition, table.c.experiment, table.c.role, table.c.epoch, table.c.owner)
    return [
        FenceState(
            Partition(stream, number),
            UUID(bytes=bytes(experiment)) if experiment else None,
            role,
            epoch,
            UUID(bytes=bytes(owner)),
        )
        for stream, number, experiment, role, epoch, owner in await connection.execute(select(*columns))
    ]
