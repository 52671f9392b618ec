"""The one connection that writes: group commit, idempotency, hash chain, and recovery after a failed write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain as flatten
from pathlib import Path
from typing import Any

import apsw
import msgspec

from rftd.ops.errors import LogError
from rftd.streams.log.chain import GENESIS, Heads, Mark, check_mark, different, link
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.errors import translate
from rftd.streams.sqlite.ids import IdIndex, place_of, split_place
from rftd.streams.sqlite.rows import checked_rows, damaged, packed, row_sum
from rftd.streams.sqlite.wal import Checkpointer, WalKeeper

"""SQLite's number of the vacuum mode in which a file can give pages back."""


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one transaction: a position per draft, the records that are new, and the heads that moved."""

    positions: list[Position]
    records: list[Record]
    heads: Heads


class _WrittenPart:
    """A partition as the writer knows it."""

    def __init__(self, id: int, start: Mark, start_size: int) -> None:
        self.id = id
        self.start = start
        self.head = start
        self.end_size = start_size
        self.statements = schema.Statements(id)


class _Run:
    """The rows that a transaction adds to one partition, and the partition's end after them."""

    def __init__(self, part: _WrittenPart) -> None:
        self.part = part
        self.offset, self.chain = part.head
        self.end_size = part.end_size
        self.rows: list[tuple[int, bytes, bytes, bytes, int, bytes, bytes, int]] = []


class Store:
    """The database of the embedded log; used by one thread at a time."""

    def __init__(self, path: Path, point: Callable[[str], None]) -> None:
        self._path = path
        self._point = point
        self._connection: apsw.Connection | None = None
        self._parts: dict[Partition, _WrittenPart] = {}
        self._acknowledged: Heads = {}
        self._ids: IdIndex | None = None
        self._checkpointer = Checkpointer(path)
        self.wal = WalKeeper(path, self._checkpointer)
        """The write-ahead log."""
        try:
            self._open()
        except (apsw.Error, OSError, TypeError, ValueError) as error:
            raise translate(error, str(path), reading=True) from error
        self._acknowledged = self.heads

    @property
    def heads(self) -> Heads:
        """The heads of all partitions that hold or held a record."""
        return {partition: part.head for partition, part in self._parts.items()}

    @property
    def connection(self) -> apsw.Connection:
        """The open connection. Raises LogError if a write failed and reopening is still to come."""
        if self._connection is None:
            raise LogError("the log is between a failed write and its recovery", where=str(self._path))
        return self._connection

    def commit(self, drafts: Sequence[Draft]) -> Commit:
        """Makes the drafts durable in one transaction; repeated ids keep their first position.

        Raises LogFullError, LogCorruptError, LogLossError, or UnreachableError if the outcome is unknown. Whatever it
        raises, the next commit begins by opening the file anew.
        """
        try:
            moved = self._recover()
            commit = self._commit(drafts)
        except Exception as error:  # whatever it is, a transaction may be open
            self._abandon()
            raise translate(error, str(self._path)) from error
        self._acknowledged.update(commit.heads)
        return Commit(commit.positions, commit.records, moved | commit.heads) if moved else commit

    def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records below `before_offset` with their ids."""
        try:
            self._recover()
            part = self._parts.get(partition)
            if part is None:
                return
            before_offset = min(before_offset, part.head.next_offset)
            if before_offset <= part.start.next_offset:
                return
            connection = self.connection
            # IMMEDIATE takes the write lock at once: a transaction that begins by reading could not be raised to a
            # writing one, without being begun anew, once another connection had written in between.
            connection.execute("BEGIN IMMEDIATE")
            index = self._index()
            # The new start keeps the chain of the last record that goes: what is left stays verifiable.
            offset, chain, end_size = connection.execute(part.statements.at, (before_offset - 1,)).get
            ids: list[Any] = connection.execute(part.statements.ids_below, (before_offset,)).fetchall()
            connection.executemany(schema.REMOVE_ID, ids)
            connection.execute(part.statements.remove_below, (before_offset,))
            connection.execute(schema.MOVE_START, (offset + 1, chain, end_size, part.id))
            connection.execute("COMMIT")
            # Memory follows the commit: before it, a failure would leave an index that knows less than the file.
            index.forget(id for (id,) in ids)
            part.start = Mark(offset + 1, chain)
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Puts other values into the rows at these offsets: without their payload (`thin`), or with it again.

        What is put back must be what the hash chain covers: raises LogCorruptError if it is not. Offsets that hold no
        record are left out.
        """
        try:
            self._recover()
            part = self._parts.get(partition)
            if part is None:
                return
            self.connection.execute("BEGIN IMMEDIATE")
            for offset, value in values.items():
                if part.start.next_offset <= offset < part.head.next_offset:
                    self._rewrite(part, partition, offset, value, thin=thin)
            self.connection.execute("COMMIT")
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def _rewrite(self, part: _WrittenPart, partition: Partition, offset: int, value: bytes, *, thin: bool) -> None:
        id, record = next(checked_rows(self.connection, part.statements, partition, offset, 1))
        if not thin and link(self._chain_before(part, offset), record.head, value) != record.chain:
            raise damaged(partition, offset, "is not the record that the payload was brought back for")
        # The chain stays that of the whole value: it is what heads, witnesses and the next record refer to.
        stored, form = packed(value, thin=thin)
        total = row_sum(id, record.chain, record.head, stored, form)
        end_size: int = self.connection.execute(part.statements.at, (offset,)).get[2]
        # Not an UPDATE: after that SQLite leaves pages that are nearly empty as they are.
        self.connection.execute(part.statements.remove_one, (offset,))
        row = (offset, id, record.chain, total, end_size, record.head, stored, form)
        self.connection.execute(part.statements.add_one, row)

    def _chain_before(self, part: _WrittenPart, offset: int) -> bytes:
        if offset == part.start.next_offset:
            return part.start.chain
        chain: bytes = self.connection.execute(part.statements.at, (offset - 1,)).get[1]
        return chain

    def give_back(self) -> int:
        """Returns some pages that nothing uses to the file system; the number of pages that are left."""
        try:
            self._recover()
            self.connection.execute(f"PRAGMA incremental_vacuum({schema.GIVEN_BACK_PAGES})").fetchall()
            left = int(self.connection.pragma("freelist_count"))
            if left == 0:  # a whole checkpoint cuts the file; one that a reader is in the way of leaves that to another
                with suppress(apsw.BusyError):  # the checkpointer is at it
                    self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            return left
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def settle(self) -> None:
        """Does what may wait until the producers have their answers; what was committed is safe either way."""
        if self._connection is None:
            return
        try:
            # Only an index that is there: making one needs a transaction, and the next commit makes it anyway.
            if self._ids is not None:
                self._ids.settle({part.id: part.head.next_offset for part in self._parts.values()})
            self.wal.look(self._connection)
        except apsw.BusyError:
            return
        except (apsw.Error, OSError):
            self._abandon()

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._checkpointer.close()  # first: the last connection to close moves the write-ahead log and removes it
        self._abandon()

    def _open(self) -> None:
        connection = schema.connect_writer(self._path)
        try:
            connection.set_wal_hook(self._on_commit)
            self._parts = {}
            for stored in schema.stored_parts(connection):
                part = self._parts[stored.partition] = _WrittenPart(stored.id, stored.start, stored.start_size)
                part.head = stored.head
                part.end_size = stored.end_size
        except BaseException:
            connection.close(True)
            raise
        self._connection = connection

    def _recover(self) -> Heads:
        """Opens the file again if a write had failed; the heads that moved since the last acknowledgement."""
        if self._connection is not None:
            return {}
        with self._checkpointer.at_rest():
            self._open()
            # After a failed sync the kernel may hold pages that are marked clean and are not on disk: write them anew.
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        # What was acknowledged must be there still, before anything is appended to what the file holds now.
        for partition, mark in self._acknowledged.items():
            part = self._parts.get(partition) or _WrittenPart(0, Mark(0, GENESIS), 0)
            check_mark(partition, mark, head=part.head, start=part.start)
            if mark.next_offset > part.start.next_offset:
                row = self.connection.execute(part.statements.at, (mark.next_offset - 1,)).get
                if row is None or row[1] != mark.chain:
                    raise different(partition, mark)
        # Records of a commit whose outcome was unknown may have landed: followers must hear of them.
        return {partition: head for partition, head in self.heads.items() if self._acknowledged.get(partition) != head}

    def _commit(self, drafts: Sequence[Draft]) -> Commit:
        runs: dict[Partition, _Run] = {}
        added: list[tuple[bytes, int]] = []
        positions: list[Position] = []
        records: list[Record] = []
        ids = [draft.id.bytes for draft in drafts]
        self.connection.execute("BEGIN IMMEDIATE")  # before the look-up, though one process writes: see `truncate`
        places = self._known(ids)
        for draft, id in zip(drafts, ids, strict=True):  # the hot loop: a few microseconds per record
            place = places.get(id)
            if place is None:
                partition = draft.partition
                head = draft.head
                value = draft.value
                run = runs.get(partition)
                if run is None:
                    run = runs[partition] = _Run(self._part(partition, runs))
                offset = run.offset
                run.chain = chain = link(run.chain, head, value)
                run.end_size += len(head) + len(value)
                run.offset = offset + 1
                stored, form = packed(value)
                total = row_sum(id, chain, head, stored, form)
                run.rows.append((offset, id, chain, total, run.end_size, head, stored, form))
                added.append((id, place_of(run.part.id, offset)))
                records.append(Record(partition, offset, chain, head, value))
                place = places[id] = Position(partition, offset)  # an id that stands twice in one group lands once
            positions.append(place)
        if records:
            self._write(runs)
            self._index().add(added)
        else:
            self.connection.execute("COMMIT")
        return Commit(positions, records, {partition: run.part.head for partition, run in runs.items()})

    def _write(self, runs: dict[Partition, _Run]) -> None:
        """Ends the transaction that is open with these rows."""
        connection = self.connection
        for partition, run in runs.items():
            if partition not in self._parts:
                connection.execute(schema.ADD_PART, (run.part.id, *partition, GENESIS))
                connection.execute(run.part.statements.create)
            _insert(connection, run.part.statements.add_many, run.part.statements.add_one, run.rows)
        self._point("log.before_commit")
        connection.execute("COMMIT")
        self._point("log.after_commit")
        # Only now, for what is in memory must never be ahead of the file: an append that failed is retried against it.
        for partition, run in runs.items():
            run.part.head = Mark(run.offset, run.chain)
            run.part.end_size = run.end_size
            self._parts[partition] = run.part

    def _part(self, partition: Partition, runs: dict[Partition, _Run]) -> _WrittenPart:
        """The partition, or a new one that exists once the transaction is committed."""
        known = self._parts.get(partition)
        if known is not None:
            return known
        used = [part.id for part in self._parts.values()] + [run.part.id for run in runs.values()]
        return _WrittenPart(max(used, default=0) + 1, Mark(0, GENESIS), 0)

    def _known(self, ids: Sequence[bytes]) -> dict[bytes, Position]:
        """First positions of those ids that are in the log."""
        places = self._index().places(ids)
        if not places:
            return {}
        partitions = {part.id: partition for partition, part in self._parts.items()}
        split = {id: split_place(place) for id, place in places.items()}
        return {id: Position(partitions[part_id], offset) for id, (part_id, offset) in split.items()}

    def _index(self) -> IdIndex:
        """The ids of all records; to be asked for within a transaction."""
        if self._ids is None:
            self._ids = IdIndex(self.connection, [part.id for part in self._parts.values()])
        return self._ids

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self.wal.pages = pages
        return apsw.SQLITE_OK

    def _abandon(self) -> None:
        # Without a rollback: after a failed write SQLite's state is in doubt, and closing ends the transaction as well.
        connection = self._connection
        self._connection = None
        self._ids = None
        if connection is not None:
            with suppress(apsw.Error):  # a disk that fails at the close too: the writer's thread must live
                connection.close(True)


def _insert(connection: apsw.Connection, many: str, one: str, rows: Sequence[tuple[Any, ...]]) -> None:
    whole = len(rows) - len(rows) % schema.ROWS_AT_ONCE
    for start in range(0, whole, schema.ROWS_AT_ONCE):
        connection.execute(many, tuple(flatten.from_iterable(rows[start : start + schema.ROWS_AT_ONCE])))
    if whole < len(rows):
        connection.executemany(one, rows[whole:])
