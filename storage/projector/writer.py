"""`TableWriter`: writes folded changes in the caller's transaction, positions first; reads positions at the start."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Dialect, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import ConflictError
from rftd.storage.database.tables.base import table_of
from rftd.storage.database.tables.progress import Fences, Once, Positions
from rftd.storage.database.visit import visit
from rftd.storage.projector.experience_states import Dialogue, Query, StateUpdate
from rftd.storage.projector.fold import FenceState, Folded
from rftd.storage.projector.upserts import Upsert, Values
from rftd.streams.folds.ranges import REMEMBERED
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.topics import Partition

_positions: Final = table_of(Positions)
"""Table of the projections' positions."""
_STORED: Final = select(_positions.c.stream, _positions.c.partition, _positions.c.next_offset, _positions.c.chain)
"""Query for the stored positions."""
_LOCKED: Final = _STORED.with_for_update()
"""Query for the stored positions under a row lock."""
_MOVED: Final = (
    update(_positions)
    .where(_positions.c.stream == bindparam("stream_"), _positions.c.partition == bindparam("partition_"))
    .values(next_offset=bindparam("next_offset_"), chain=bindparam("chain_"))
)
"""Statement moving a position, on Postgres."""
_STORED_IN_FILE: Final = 'SELECT stream, "partition", next_offset FROM positions'
"""Query for the stored positions, on SQLite."""
_MOVE_POSITION_IN_FILE: Final = """INSERT INTO positions (stream, "partition", next_offset, chain) VALUES (?, ?, ?, ?)
ON CONFLICT (stream, "partition") DO UPDATE SET next_offset = excluded.next_offset, chain = excluded.chain"""
"""Statement moving a position, on SQLite."""
_INSERT_POSITION: Final = insert(_positions).values(
    {column.name: bindparam(f"{column.name}_") for column in _positions.columns}
)
"""Statement inserting a position, on Postgres."""


class TableWriter:
    """The writer of rows, with a cache of the compiled statement of each upsert."""

    def __init__(self) -> None:
        self._statements: dict[Upsert, str] = {}
        """Text of each upsert, built once."""

    async def write(self, connection: AsyncConnection, folded: Folded, sent: asyncio.Event) -> None:
        """Moves the positions, and writes the rows. `sent` is set once the database has work to do.

        Raises ConflictError if another projector moved the positions meanwhile.
        """
        if connection.dialect.name != "postgresql":
            statements = {upsert: self._statement(upsert, connection.dialect) for upsert in folded.rows}
            sent.set()
            await visit(connection, partial(_write_file, folded, statements))
            return
        await _move_positions(connection, folded)
        sent.set()  # the waiter's turn comes once the first rows are on their way
        update = StateUpdate(folded.rows)
        await _converse(connection, update.before())
        await self._write_rows(connection, {upsert: folded.rows[upsert] for upsert in update.first})
        await _converse(connection, update.insert())
        await self._write_rows(connection, update.repeated)
        await _converse(connection, update.after())

    async def _write_rows(self, connection: AsyncConnection, rows: Mapping[Upsert, list[Values]]) -> None:
        """Writes rows on Postgres."""
        for upsert, changes in rows.items():
            # Lists of columns are a fifth cheaper than a pipeline of rows, and cheaper than COPY for few rows.
            columns = zip(*upsert.reduced(changes), strict=True)
            statement = self._statement(upsert, connection.dialect)
            await connection.exec_driver_sql(statement, tuple(list(column) for column in columns))

    def _statement(self, upsert: Upsert, dialect: Dialect) -> str:
        """Returns the text of an upsert in a dialect."""
        statement = self._statements.get(upsert)
        if statement is None:
            statement = self._statements[upsert] = upsert.statement(dialect)
        return statement


def _write_file(folded: Folded, statements: Mapping[Upsert, str], file: sqlite3.Connection) -> None:
    """Writes everything in a single visit to the connection's thread: a visit for each statement costs more than a
    small statement.
    """
    stored = {Partition(stream, number): offset for stream, number, offset in file.execute(_STORED_IN_FILE)}
    _check_positions(folded, stored)
    moved = [(*partition, mark.next_offset, mark.chain) for partition, mark in folded.after.items()]
    file.executemany(_MOVE_POSITION_IN_FILE, moved)
    update = StateUpdate(folded.rows)
    _converse_with_file(file, update.before())
    for upsert in update.first:
        file.executemany(statements[upsert], folded.rows[upsert])
    _converse_with_file(file, update.insert())
    for upsert, rows in update.repeated.items():
        file.executemany(statements[upsert], rows)
    _converse_with_file(file, update.after())


def _converse_with_file(file: sqlite3.Connection, dialogue: Dialogue) -> None:
    """Runs the queries and writes of a dialogue on a SQLite file."""
    rows: list[Any] = []
    with suppress(StopIteration):
        step = next(dialogue)
        while True:
            if isinstance(step, Query):
                rows = [row for sql, parameters in step.in_file() for row in file.execute(sql, parameters)]
            else:
                file.executemany(step.in_file, step.rows)
                rows = []
            step = dialogue.send(rows)


async def _converse(connection: AsyncConnection, dialogue: Dialogue) -> None:
    """Runs the queries and writes of a dialogue on Postgres."""
    rows: list[Any] = []
    with suppress(StopIteration):
        step = next(dialogue)
        while True:
            if isinstance(step, Query):
                rows = [tuple(row) for row in await connection.exec_driver_sql(*step.on_server())]
            else:
                columns = zip(*step.rows, strict=True)
                await connection.exec_driver_sql(step.on_server, tuple(list(column) for column in columns))
                rows = []
            step = dialogue.send(rows)


async def _move_positions(connection: AsyncConnection, folded: Folded) -> None:
    # The rows of the positions are the lock against a second projector on the database, so these rows come first.
    """Moves the stored positions on Postgres, under a row lock."""
    stored = await read_positions(connection, lock=True)
    _check_positions(folded, {partition: mark.next_offset for partition, mark in stored.items()})
    moved: list[dict[str, object]] = []
    added: list[dict[str, object]] = []
    for partition, mark in folded.after.items():
        row = {
            "stream_": partition.stream,
            "partition_": partition.number,
            "next_offset_": mark.next_offset,
            "chain_": mark.chain,
        }
        (moved if partition in stored else added).append(row)
    if moved:
        await connection.execute(_MOVED, moved)
    if added:
        await connection.execute(_INSERT_POSITION, added)


def _check_positions(folded: Folded, stored: Mapping[Partition, int]) -> None:
    """Raises ConflictError if the positions have changed since the rows were folded."""
    # Checked in addition to the lock against rivals: the lock ends with the session, and a projector without a
    # connection may notice late.
    for partition, before in folded.before.items():
        if stored.get(partition, 0) != before.next_offset:
            raise ConflictError(
                f"another process moved the projections' position in {partition} from {before.next_offset}",
                fix="let one daemon use this database",
            )


async def read_positions(connection: AsyncConnection, *, lock: bool = False) -> Heads:
    """Returns the positions of the projections; with `lock`, no other transaction can move them before the end of the
    caller's.

    (On SQLite, without row locks, the later of two writers fails at the first write.)
    """
    rows = await connection.execute(_LOCKED if lock else _STORED)
    return {Partition(stream, number): Mark(next_offset, bytes(chain)) for stream, number, next_offset, chain in rows}


async def read_fences(connection: AsyncConnection) -> list[FenceState]:
    """Returns the owners of roles at the stored positions."""
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
    """Returns the events not to be counted again, up to a fold's memory per partition, the newest last."""
    columns = table_of(Once).c
    newest = func.row_number().over(
        partition_by=(columns.stream, columns.partition), order_by=columns.applied_offset.desc()
    )
    ranked = select(columns.stream, columns.partition, columns.event, columns.applied_offset, newest.label("rank"))
    ranked_events = ranked.subquery()
    remembered = select(ranked_events.c.stream, ranked_events.c.partition, ranked_events.c.event).where(
        ranked_events.c.rank <= 2 * REMEMBERED
    )
    rows = await connection.execute(remembered.order_by(ranked_events.c.applied_offset))
    return [(Partition(stream, number), bytes(event)) for stream, number, event in rows]
