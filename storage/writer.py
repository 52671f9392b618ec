"""`TableWriter`: folded changes written in the caller's transaction, positions first, and positions read at a start."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Dialect, bindparam, func, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import ConflictError
from rftd.storage.fold import FenceState, Folded
from rftd.storage.pairs import Pair
from rftd.storage.tables.base import table_of
from rftd.storage.tables.progress import Fences, Once, Positions
from rftd.storage.upserts import Upsert, Values
from rftd.streams.chain import Heads, Mark
from rftd.streams.folds.once import REMEMBERED
from rftd.streams.topics import Partition

_positions: Final = table_of(Positions)
_STORED: Final = select(_positions.c.stream, _positions.c.partition, _positions.c.next_offset, _positions.c.chain)
_LOCKED: Final = _STORED.with_for_update()
_MOVED: Final = (
    update(_positions)
    .where(_positions.c.stream == bindparam("stream_"), _positions.c.partition == bindparam("partition_"))
    .values(next_offset=bindparam("next_offset_"), chain=bindparam("chain_"))
)
_MADE: Final = insert(_positions).values({column.name: bindparam(f"{column.name}_") for column in _positions.columns})


class TableWriter:
    """The writer of rows, which keeps the compiled statement of each upsert."""

    def __init__(self) -> None:
        self._statements: dict[Upsert | Pair, str] = {}

    async def write(self, connection: AsyncConnection, folded: Folded) -> None:
        """Writes the rows; the positions must have been moved before, in the same transaction: see `move`."""
        work = [(self._statement(upsert, connection.dialect), upsert, rows) for upsert, rows in folded.rows.items()]
        if work and connection.dialect.name != "postgresql":
            await _write_file(connection, [(statement, rows) for statement, _, rows in work])
            return
        for statement, upsert, rows in work:
            # Lists of columns are a fifth cheaper than a pipeline of rows, and cheaper than COPY for few rows.
            columns = zip(*upsert.reduced(rows), strict=True)
            await connection.exec_driver_sql(statement, tuple(list(column) for column in columns))

    def _statement(self, upsert: Upsert | Pair, dialect: Dialect) -> str:
        statement = self._statements.get(upsert)
        if statement is None:
            statement = self._statements[upsert] = upsert.statement(dialect)
        return statement


async def _write_file(connection: AsyncConnection, work: Sequence[tuple[str, list[Values]]]) -> None:
    """All statements in one visit to the connection's thread: one visit for each costs more than small statements."""
    driver: Any = (await connection.get_raw_connection()).driver_connection

    def write() -> None:
        for statement, rows in work:
            driver._conn.executemany(statement, rows)

    try:
        await driver._execute(write)  # as SQLAlchemy's own driver does: aiosqlite has no public name for it
    except sqlite3.Error as error:
        raise DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True) from error


async def move(connection: AsyncConnection, folded: Folded) -> None:
    """Moves the positions. Raises ConflictError if another projector moved them meanwhile.

    Their rows are the lock that a second projector on this database meets: so they come before all others.
    """
    stored = await read_positions(connection, lock=True)
    # Compared, though a lock keeps rivals out: that lock ends with its session, and a projector whose connection was
    # cut may learn of it late.
    for partition, before in folded.before.items():
        if (stored[partition].next_offset if partition in stored else 0) != before.next_offset:
            raise ConflictError(
                f"another process moved the projections' position in {partition} from {before.next_offset}",
                fix="let one daemon use this database",
            )
    moved: list[dict[str, object]] = []
    made: list[dict[str, object]] = []
    for partition, mark in folded.after.items():
        row = {
            "stream_": partition.stream,
            "partition_": partition.number,
            "next_offset_": mark.next_offset,
            "chain_": mark.chain,
        }
        (moved if partition in stored else made).append(row)
    if moved:
        await connection.execute(_MOVED, moved)
    if made:
        await connection.execute(_MADE, made)


async def read_positions(connection: AsyncConnection, *, lock: bool = False) -> Heads:
    """The positions of the projections; with `lock` nobody else moves them before this transaction ends.

    (On SQLite, which knows no row locks, the later of two writers fails at its first write.)
    """
    rows = await connection.execute(_LOCKED if lock else _STORED)
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


async def read_once(connection: AsyncConnection) -> list[tuple[Partition, bytes]]:
    """The events that must not count again, as many of each partition as a fold remembers, the newest last."""
    columns = table_of(Once).c
    newest = func.row_number().over(
        partition_by=(columns.stream, columns.partition), order_by=columns.applied_offset.desc()
    )
    ranked = select(columns.stream, columns.partition, columns.event, columns.applied_offset, newest.label("rank"))
    found = ranked.subquery()
    wanted = select(found.c.stream, found.c.partition, found.c.event).where(found.c.rank <= 2 * REMEMBERED)
    rows = await connection.execute(wanted.order_by(found.c.applied_offset))
    return [(Partition(stream, number), bytes(event)) for stream, number, event in rows]
