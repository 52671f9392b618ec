"""The one writing connection: group commit, idempotency, hash chain, and recovery after a failed write."""

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


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one transaction: a position per draft, the new records, and the heads of the grown partitions."""

    positions: list[Position]
    """Position of each draft, of repeated ones as well."""
    records: list[Record]
    """The records added."""
    heads: Heads
    """New heads of the partitions with added records; after a recovery, also of partitions grown by a commit of unknown
    outcome.
    """


class _WrittenPart:
    """State of a partition as of the last commit, in the writer's memory."""

    def __init__(self, id: int, start: Mark, start_size: int) -> None:
        """Begins at the first retained offset."""
        self.id = id
        self.start = start
        self.head = start
        self.end_size = start_size
        self.statements = schema.Statements(id)


class _Run:
    """Rows to be added to one partition by the present transaction."""

    def __init__(self, part: _WrittenPart) -> None:
        """Begins at the partition's end, without a row."""
        self.part = part
        self.offset, self.chain = part.head
        self.end_size = part.end_size
        self.rows: list[tuple[int, bytes, bytes, bytes, int, bytes, bytes, int]] = []


class Store:
    """The database of the embedded log; used by one thread at a time."""

    def __init__(self, path: Path, point: Callable[[str], None]) -> None:
        """Opens or creates the database; `point` is called at named moments, for tests of crashes."""
        self._path = path
        self._point = point
        self._connection: apsw.Connection | None = None
        self._parts: dict[Partition, _WrittenPart] = {}
        self._acknowledged: Heads = {}
        self._ids: IdIndex | None = None
        self._checkpointer = Checkpointer(path)
        self.wal = WalKeeper(path, self._checkpointer)
        """Decides when the write-ahead log is emptied."""
        try:
            self._open()
        except (apsw.Error, OSError, TypeError, ValueError) as error:
            raise translate(error, str(path), reading=True) from error
        self._acknowledged = self.heads

    @property
    def heads(self) -> Heads:
        """Heads of all partitions that ever had a record."""
        return {partition: part_state.head for partition, part_state in self._parts.items()}

    @property
    def connection(self) -> apsw.Connection:
        """The open connection. Raises LogError between a failed write and the reopening."""
        if self._connection is None:
            raise LogError("the log is between a failed write and its recovery", where=str(self._path))
        return self._connection

    def commit(self, drafts: Sequence[Draft]) -> Commit:
        """Makes the drafts durable in one transaction; repeated ids keep their first position.

        Raises LogFullError, LogCorruptError, LogLossError, or UnreachableError if the outcome is unknown. After any
        error, the next commit begins by opening the file anew.
        """
        try:
            moved = self._recover()
            commit = self._commit(drafts)
        except Exception as error:  # any error: a transaction may be open
            self._abandon()
            raise translate(error, str(self._path)) from error
        self._acknowledged.update(commit.heads)
        return Commit(commit.positions, commit.records, moved | commit.heads) if moved else commit

    def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records below `before_offset` with their ids."""
        try:
            self._recover()
            part_state = self._parts.get(partition)
            if part_state is None:
                return
            before_offset = min(before_offset, part_state.head.next_offset)
            if before_offset <= part_state.start.next_offset:
                return
            connection = self.connection
            # IMMEDIATE takes the write lock at once: a transaction begun by reading could not be raised to a writing
            # one, without a new begin, once another connection had written in between.
            connection.execute("BEGIN IMMEDIATE")
            index = self._index()
            # The new start keeps the chain of the last deleted record: the remaining records stay verifiable.
            offset, chain, end_size = connection.execute(part_state.statements.at, (before_offset - 1,)).get
            ids: list[Any] = connection.execute(part_state.statements.ids_below, (before_offset,)).fetchall()
            connection.executemany(schema.REMOVE_ID, ids)
            connection.execute(part_state.statements.remove_below, (before_offset,))
            connection.execute(schema.MOVE_START, (offset + 1, chain, end_size, part_state.id))
            connection.execute("COMMIT")
            # Memory follows the commit: a failure before it would leave an index knowing less than the file.
            index.forget(id for (id,) in ids)
            part_state.start = Mark(offset + 1, chain)
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Replaces the stored values at these offsets: by values without their payload (`thin`), or by complete ones.

        A complete value must match the hash chain: raises LogCorruptError otherwise. Offsets without a record are
        skipped.
        """
        try:
            self._recover()
            part_state = self._parts.get(partition)
            if part_state is None:
                return
            self.connection.execute("BEGIN IMMEDIATE")
            for offset, stored_value in values.items():
                if part_state.start.next_offset <= offset < part_state.head.next_offset:
                    self._rewrite(part_state, partition, offset, stored_value, thin=thin)
            self.connection.execute("COMMIT")
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def _rewrite(
        self, part_state: _WrittenPart, partition: Partition, offset: int, value: bytes, *, thin: bool
    ) -> None:
        """Replaces a record's stored value: without its payload (`thin`), or with the payload restored."""
        id, record = next(checked_rows(self.connection, part_state.statements, partition, offset, 1))
        if not thin and link(self._chain_before(part_state, offset), record.head, value) != record.chain:
            raise damaged(partition, offset, "is not the record of the restored payload")
        # The chain stays the whole value's: heads, witnesses and the next record refer to it.
        stored, form = packed(value, thin=thin)
        total = row_sum(id, record.chain, record.head, stored, form)
        end_size: int = self.connection.execute(part_state.statements.at, (offset,)).get[2]
        # Not an UPDATE: after one, SQLite keeps nearly empty pages unmerged.
        self.connection.execute(part_state.statements.remove_one, (offset,))
        row = (offset, id, record.chain, total, end_size, record.head, stored, form)
        self.connection.execute(part_state.statements.add_one, row)

    def _chain_before(self, part_state: _WrittenPart, offset: int) -> bytes:
        """Returns the chain of the record before an offset."""
        if offset == part_state.start.next_offset:
            return part_state.start.chain
        chain: bytes = self.connection.execute(part_state.statements.at, (offset - 1,)).get[1]
        return chain

    def give_back(self) -> int:
        """Returns some unused pages to the file system; returns the number of unused pages left in the file."""
        try:
            self._recover()
            self.connection.execute(f"PRAGMA incremental_vacuum({schema.GIVEN_BACK_PAGES})").fetchall()
            free_pages = int(self.connection.pragma("freelist_count"))
            if (
                free_pages == 0
            ):  # a whole checkpoint cuts the file; one blocked by a reader leaves the cut to a later one
                with suppress(apsw.BusyError):  # the checkpointer is running
                    self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            return free_pages
        except Exception as error:
            self._abandon()
            raise translate(error, str(self._path)) from error

    def settle(self) -> None:
        """Does work postponed until the producers are answered: moves ids to the table, and empties the write-ahead
        log. Records are safe without it.
        """
        if self._connection is None:
            return
        try:
            # Only an existing index: creating one needs a transaction, and the next commit creates it anyway.
            if self._ids is not None:
                self._ids.settle({part_state.id: part_state.head.next_offset for part_state in self._parts.values()})
            self.wal.look(self._connection)
        except apsw.BusyError:
            return
        except (apsw.Error, OSError):
            self._abandon()

    def close(self) -> None:
        """Closes the file after the checkpointer's thread has ended; idempotent."""
        self._checkpointer.close()  # first: the last connection to close moves the write-ahead log and removes it
        self._abandon()

    def _open(self) -> None:
        """Connects, and reads the state of every partition."""
        connection = schema.connect_writer(self._path)
        try:
            connection.set_wal_hook(self._on_commit)
            self._parts = {}
            for stored in schema.stored_parts(connection):
                part_state = self._parts[stored.partition] = _WrittenPart(stored.id, stored.start, stored.start_size)
                part_state.head = stored.head
                part_state.end_size = stored.end_size
        except BaseException:
            connection.close(True)
            raise
        self._connection = connection

    def _recover(self) -> Heads:
        """Reopens the file after a failed write; returns the heads changed since the last acknowledgement."""
        if self._connection is not None:
            return {}
        with self._checkpointer.at_rest():
            self._open()
            # After a failed sync the kernel may hold pages marked clean but not on disk: write them anew.
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        # Acknowledged records must still be there, before anything is appended to the file's present content.
        for partition, mark in self._acknowledged.items():
            part_state = self._parts.get(partition) or _WrittenPart(0, Mark(0, GENESIS), 0)
            check_mark(partition, mark, head=part_state.head, start=part_state.start)
            if mark.next_offset > part_state.start.next_offset:
                row = self.connection.execute(part_state.statements.at, (mark.next_offset - 1,)).get
                if row is None or row[1] != mark.chain:
                    raise different(partition, mark)
        # Records of a commit with an unknown outcome may have landed: followers must be woken for them.
        return {partition: head for partition, head in self.heads.items() if self._acknowledged.get(partition) != head}

    def _commit(self, drafts: Sequence[Draft]) -> Commit:
        """Writes drafts in one transaction; repeated ones only get their position."""
        runs: dict[Partition, _Run] = {}
        added: list[tuple[bytes, int]] = []
        positions: list[Position] = []
        records: list[Record] = []
        ids = [draft.id.bytes for draft in drafts]
        self.connection.execute("BEGIN IMMEDIATE")  # before the look-up, though one process writes: see `truncate`
        known_positions = self._known(ids)
        for draft, id in zip(drafts, ids, strict=True):  # the hot loop: a few microseconds per record
            position = known_positions.get(id)
            if position is None:
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
                position = known_positions[id] = Position(
                    partition, offset
                )  # an id repeated within one group lands once
            positions.append(position)
        if records:
            self._write(runs)
            self._index().add(added)
        else:
            self.connection.execute("COMMIT")
        return Commit(positions, records, {partition: run.part.head for partition, run in runs.items()})

    def _write(self, runs: dict[Partition, _Run]) -> None:
        """Ends the open transaction with these rows."""
        connection = self.connection
        for partition, run in runs.items():
            if partition not in self._parts:
                connection.execute(schema.ADD_PART, (run.part.id, *partition, GENESIS))
                connection.execute(run.part.statements.create)
            _insert(connection, run.part.statements.add_many, run.part.statements.add_one, run.rows)
        self._point("log.before_commit")
        connection.execute("COMMIT")
        self._point("log.after_commit")
        # Only now: memory must never be ahead of the file, as a failed append is retried against memory.
        for partition, run in runs.items():
            run.part.head = Mark(run.offset, run.chain)
            run.part.end_size = run.end_size
            self._parts[partition] = run.part

    def _part(self, partition: Partition, runs: dict[Partition, _Run]) -> _WrittenPart:
        """Returns the partition, or a new one, existing once the transaction is committed."""
        part_state = self._parts.get(partition)
        if part_state is not None:
            return part_state
        used = [state.id for state in self._parts.values()] + [run.part.id for run in runs.values()]
        return _WrittenPart(max(used, default=0) + 1, Mark(0, GENESIS), 0)

    def _known(self, ids: Sequence[bytes]) -> dict[bytes, Position]:
        """Returns the first position of each of `ids` already in the log, by id."""
        locations = self._index().places(ids)
        if not locations:
            return {}
        partitions = {part_state.id: partition for partition, part_state in self._parts.items()}
        split = {id: split_place(location) for id, location in locations.items()}
        return {id: Position(partitions[part_id], offset) for id, (part_id, offset) in split.items()}

    def _index(self) -> IdIndex:
        """Returns the index of all ids; call it within a transaction."""
        if self._ids is None:
            self._ids = IdIndex(self.connection, [part_state.id for part_state in self._parts.values()])
        return self._ids

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """Notes the size of the write-ahead log; called by SQLite after each commit."""
        self.wal.pages = pages
        return apsw.SQLITE_OK

    def _abandon(self) -> None:
        # Without a rollback: after a failed write SQLite's state is in doubt, and closing ends the transaction as well.
        """Closes the connection after a failed write; the next use opens another."""
        connection = self._connection
        self._connection = None
        self._ids = None
        if connection is not None:
            with suppress(apsw.Error):  # a disk failing at the close too: the writer's thread must live
                connection.close(True)


def _insert(connection: apsw.Connection, add_many: str, add_one: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Inserts rows, `ROWS_PER_STATEMENT` in one statement as far as possible."""
    whole = len(rows) - len(rows) % schema.ROWS_PER_STATEMENT
    for start in range(0, whole, schema.ROWS_PER_STATEMENT):
        connection.execute(add_many, tuple(flatten.from_iterable(rows[start : start + schema.ROWS_PER_STATEMENT])))
    if whole < len(rows):
        connection.executemany(add_one, rows[whole:])
