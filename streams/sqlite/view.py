"""`SqliteView`: the embedded log read-only, for tools while no daemon runs, or beside a running one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from rftd.ops import limits
from rftd.ops.errors import ConflictError, NotFoundError, RftdError
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.tail import Tail, TailSubscription
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.gil_yield import GilYield
from rftd.streams.sqlite.reader import ReaderThreads

POLL_INTERVAL_S: Final = 0.02
"""Pause in seconds between two polls of the file; a poll without news reads one row per partition."""


class SqliteView:
    """The embedded log opened read-only: appends and truncation raise ConflictError; followers poll the file.

    Each record read is checked against the checksum of its row; the hash chain is not recomputed.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the log in `folder` for reading."""
        self._folder = folder
        self._reader = ReaderThreads(folder / schema.FILE_NAME, GilYield(), threads=1)
        self._tail = Tail({}, ring_size_bytes=0)
        self._closed = False

    @classmethod
    async def open(cls, folder: Path) -> Self:
        """Opens the log in `folder` read-only, with its present heads. Raises NotFoundError if the folder has no
        log.
        """
        if not (folder / schema.FILE_NAME).exists():
            raise NotFoundError(
                f"there is no event log at {folder / schema.FILE_NAME}",
                fix="name the folder given to `rftd serve --data`",
            )
        view = cls(folder)
        await view.refresh()
        return view

    @property
    def tail(self) -> Tail:
        """The heads of all partitions as of the last `refresh`, and the followers to wake."""
        return self._tail

    async def refresh(self) -> None:
        """Reads the present heads from the file, and wakes the subscriptions of partitions with new records."""
        heads = await self._reader.heads()
        self._tail.advance(
            (), {partition: head for partition, head in heads.items() if self._tail.head(partition) != head}
        )

    @property
    def failure(self) -> RftdError | None:
        """None: a read-only log cannot fail while writing."""
        return None

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Raises ConflictError: the log is open read-only."""
        raise ConflictError(
            "this log is open read-only", where=str(self._folder), fix="append through the running daemon"
        )

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Returns records of a partition from the offset `start` on; see `EventLog.read`. Raises LogCorruptError for a
        record missing below the head of the last `refresh`.
        """
        end = self._tail.head(partition).next_offset
        return await self._reader.read(partition, start, end, max_records, max_size_bytes)

    def subscribe(self, positions: Mapping[Partition, int]) -> TailSubscription:
        """Returns a subscription from these offsets on; it polls the file every `POLL_INTERVAL_S` seconds."""
        return _Polled(self, positions)

    async def heads(self) -> Heads:
        """Reads the present heads of all partitions from the file."""
        await self.refresh()
        return self._tail.heads

    async def check_heads(self, remembered: Heads) -> None:
        """Checks that the log still has every remembered head; see `EventLog.check_heads`."""
        await self.refresh()
        await self._reader.check_heads(remembered, self._tail)

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Raises ConflictError: the log is open read-only."""
        await self.append(())

    async def close(self) -> None:
        """Closes the connections after the reads in progress. Idempotent."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._reader.close)


class _Polled(TailSubscription):
    """A subscription polling the file, as the writer is another process and wakes nobody."""

    def __init__(self, view: SqliteView, positions: Mapping[Partition, int]) -> None:
        """Begins at `positions`, the next offset of each partition."""
        super().__init__(view, positions)
        self._view = view

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """Waits up to `wait_s` for new records, looking into the file at intervals."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            await self._view.refresh()
            records = await super().next(wait_s=0, max_records=max_records)
            if records or loop.time() >= deadline:
                return records
            await asyncio.sleep(POLL_INTERVAL_S)
