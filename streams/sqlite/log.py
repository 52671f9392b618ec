"""`SqliteLog`, the embedded default: an `EventLog` in one file, owned by one daemon.

append ─► Room (bounded) ─► writer thread: group commit, fdatasync ─► heads file ─► Tail ─► acknowledgement
read   ◄─ Tail's ring (newest records) or reader threads (read-only connections)          └─► followers wake
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from rftd.ops import faults, limits
from rftd.ops.durable import make_durable_folder
from rftd.ops.errors import RftdError, UnreachableError
from rftd.streams.log.admission import append_in_parts
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.tail import Tail, TailSubscription
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import heads_file, schema
from rftd.streams.sqlite.check import verify_newest
from rftd.streams.sqlite.gil_yield import GilYield
from rftd.streams.sqlite.heads_file import HeadsFile
from rftd.streams.sqlite.lock_file import LockFile, refuse_network_file_system
from rftd.streams.sqlite.reader import ReaderThreads
from rftd.streams.sqlite.store import Store
from rftd.streams.sqlite.wal import Blocked
from rftd.streams.sqlite.writer import WriterThread


class SqliteLog:
    """An `EventLog` in `FOLDER/log.db`; created by `open`, used on the event loop of that call."""

    def __init__(self, store: Store, path: Path, lock: LockFile, point: Callable[[str], None]) -> None:
        """Starts the threads of an opened store; `point` is called at named moments, for tests of crashes."""
        self._store = store
        self._lock = lock
        self._tail = Tail(store.heads, limits.LOG_RING_SIZE_BYTES)
        gil_yield = GilYield()
        self._reader = ReaderThreads(path, gil_yield)
        self._heads_file = HeadsFile(path.with_name(heads_file.FILE_NAME))
        self._writer = WriterThread(store, self._heads_file, self._tail, gil_yield, point)
        self._path = path
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        point: Callable[[str], None] = faults.point,
        refuse_loss: bool = True,
        lock: LockFile | None = None,
    ) -> Self:
        """Opens the log in `folder`, created if missing, and verifies its newest bytes.

        Raises ConflictError if another process has the log open or the folder is on a network file system,
        LogCorruptError or LogLossError with the position if the log is damaged or an acknowledged record is missing. A
        caller passing `refuse_loss=False` must have read `log.heads` before, for the next commit overwrites the file. A
        `lock` already acquired by the caller is released with the log.
        """
        store, acquired_lock = await asyncio.to_thread(_open, folder, point, refuse_loss, lock)
        return cls(store, folder / schema.FILE_NAME, acquired_lock, point)

    @property
    def path(self) -> Path:
        """The path of the database file, readable by other processes."""
        return self._path

    @property
    def tail(self) -> Tail:
        """Present heads, followers and newest records, shared by all readers on the event loop."""
        return self._tail

    @property
    def failure(self) -> RftdError | None:
        """Error of the last append, for the readiness probe; None while appends succeed."""
        return self._writer.failure

    @property
    def wal_size_bytes(self) -> int:
        """The size of the write-ahead log at the last commit, in bytes."""
        return self._store.wal.pages * schema.PAGE_SIZE_BYTES

    @property
    def blocked(self) -> Blocked | None:
        """Why the write-ahead log cannot be emptied; None if it can, or is small."""
        return self._store.wal.blocked

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends drafts durably, and returns their positions; see `EventLog.append`."""
        self._check_open()
        return await append_in_parts(drafts, self._writer.append)

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Reads records of a partition; see `EventLog.read`."""
        self._check_open()
        recent = self._tail.recent(partition, start, max_records, max_size_bytes)
        if recent is not None:
            return recent
        end = self._tail.head(partition).next_offset
        return await self._reader.read(partition, start, end, max_records, max_size_bytes)

    def subscribe(self, positions: Mapping[Partition, int]) -> TailSubscription:
        """Returns a subscription from these offsets on; see `EventLog.subscribe`."""
        self._check_open()
        return TailSubscription(self, positions)

    async def heads(self) -> Heads:
        """Returns the present heads of all partitions."""
        return self._tail.heads

    async def check_heads(self, remembered: Heads) -> None:
        """Raises LogLossError unless the log has every remembered head; see `EventLog.check_heads`."""
        self._check_open()
        await self._reader.check_heads(remembered, self._tail)

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records of a partition below an offset; see `EventLog.truncate`."""
        self._check_open()
        await self._writer.truncate(partition, before_offset)

    async def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Replaces stored values without changing the hash chain, to drop payloads (`thin`) or restore them; see
        `Store.rewrite`.
        """
        self._check_open()
        await self._writer.rewrite(partition, values, thin=thin)

    async def give_back(self) -> int:
        """Returns unused pages of the file to the file system; returns the number of remaining unused pages."""
        self._check_open()
        return await self._writer.give_back()

    async def used_bytes(self) -> int:
        """Returns the size of the file's used pages in bytes."""
        self._check_open()
        return await self._reader.used_bytes()

    async def close(self) -> None:
        """Completes queued appends, and releases file and lock; see `EventLog.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        # Shielded: a caller cancelled half-way must not leave the lock held and the writer's thread alive.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Commits queued appends, wakes followers, and releases files and lock."""
        await self._writer.close()  # first: queued appends still commit, and their followers still read
        self._tail.wake_all()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        """Closes reader, store and heads file, then the lock."""
        self._reader.close()  # before the store: the last connection to close tidies the write-ahead log
        self._store.close()
        self._heads_file.close()
        self._lock.release()  # last: from here on another process may open the files

    def _check_open(self) -> None:
        """Raises UnreachableError if the log is closed or closing."""
        if self._closing is not None:
            raise UnreachableError("the log is closed", where=str(self._path), fix="open it again")


def _open(
    folder: Path, point: Callable[[str], None], refuse_loss: bool, lock: LockFile | None
) -> tuple[Store, LockFile]:
    """Locks the folder, then opens and checks the store; on any error the lock is released."""
    store: Store | None = None
    try:
        make_durable_folder(folder)
        refuse_network_file_system(folder)
        lock = lock or LockFile(folder)  # before any access to the database: opening it recovers the write-ahead log
        path = folder / schema.FILE_NAME
        store = Store(path, point)
        # On the opening thread, before the first append: a log without its end must not grow a new one.
        verify_newest(store.connection, path, refuse_loss=refuse_loss)
    except BaseException:
        if store is not None:
            store.close()
        if lock is not None:
            lock.release()
        raise
    return store, lock
