"""`ReaderThreads`: reads of the embedded log, on a pool of threads with read-only connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from rftd.ops import limits
from rftd.ops.errors import UnreachableError
from rftd.streams.log.chain import Heads, Mark, check_mark, different
from rftd.streams.log.envelope import Record
from rftd.streams.log.tail import Tail
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.errors import translate
from rftd.streams.sqlite.gil_yield import GilYield
from rftd.streams.sqlite.rows import read_rows

T = TypeVar("T")
"""Result of a read."""


class ReaderThreads:
    """A small pool of threads with read-only connections; each read sees every earlier commit."""

    def __init__(self, path: Path, gil_yield: GilYield, threads: int = 2) -> None:
        """Starts the pool; each thread connects at its first read."""
        self._path = path
        self._gil_yield = gil_yield
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="log-reader")
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []
        self._closed = False

    async def read(
        self, partition: Partition, start: int, end: int, max_records: int, max_size_bytes: int
    ) -> list[Record]:
        """Returns checked records of a partition from `start` on, up to both limits; `end` is the partition's head
        known to the caller.
        """
        return await self._on_thread(
            lambda connection: read_rows(connection, partition, start, end, max_records, max_size_bytes)
        )

    async def heads(self) -> Heads:
        """Returns the present heads of all partitions in the file."""
        return await self._on_thread(
            lambda connection: {part_row.partition: part_row.head for part_row in schema.stored_parts(connection)}
        )

    async def used_bytes(self) -> int:
        """Returns the size of the file's used pages in bytes."""

        def used(connection: apsw.Connection) -> int:
            pages = connection.pragma("page_count") - connection.pragma("freelist_count")
            return int(pages * connection.pragma("page_size"))

        return await self._on_thread(used)

    async def start_of(self, partition: Partition) -> tuple[int, bytes]:
        """Returns the first retained offset and the chain before it."""

        def start(connection: apsw.Connection) -> tuple[int, bytes]:
            row: tuple[int, bytes] | None = connection.execute(schema.START, tuple(partition)).fetchone()
            return row or (0, bytes(16))

        return await self._on_thread(start)

    async def check_heads(self, remembered: Heads, tail: Tail) -> None:
        """Raises LogLossError unless the file has every remembered head; `tail` knows the present heads."""
        for partition, mark in remembered.items():
            start = Mark(*await self.start_of(partition))
            head = tail.head(partition)
            check_mark(partition, mark, head=head, start=start)
            if mark.next_offset > start.next_offset:
                # The record before the mark carries its chain, vouching for every record below.
                last_offset = mark.next_offset - 1
                records = await self.read(partition, last_offset, head.next_offset, 1, limits.FETCH_SIZE_BYTES)
                if not records or records[0].chain != mark.chain:
                    raise different(partition, mark)

    def close(self) -> None:
        """Closes the connections after the reads in progress; blocks."""
        self._closed = True
        self._pool.shutdown()
        for connection in self._connections:
            connection.close(True)

    async def _on_thread(self, work: Callable[[apsw.Connection], T]) -> T:
        """Runs `work` on a thread, with that thread's connection."""
        if self._closed:
            raise UnreachableError("the log is closed", where=str(self._path), fix="open it again")

        def run() -> T:
            try:
                return work(self._connection())
            except (apsw.Error, OSError, TypeError, ValueError) as error:
                raise translate(error, str(self._path), reading=True) from error

        with self._gil_yield:
            # A cancelled caller leaves its read running: a thread cannot be stopped, and `close` waits for it.
            return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    def _connection(self) -> apsw.Connection:
        """Returns this thread's connection, opened on first use."""
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = schema.connect_reader(self._path)
            self._connections.append(connection)  # `close` runs on another thread, without access to thread-locals
        return connection
