"""The reader of some partitions that the in-process backends share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from rftd.ops import limits
from rftd.ops.errors import LogFullError
from rftd.streams.backends.tail import Tail
from rftd.streams.envelope import Record
from rftd.streams.topics import Partition

RETRY_FULL_S: Final = 0.5


class Source(Protocol):
    """What a subscription reads from."""

    @property
    def tail(self) -> Tail: ...

    async def read(
        self, partition: Partition, start: int, *, max_records: int, max_size_bytes: int
    ) -> list[Record]: ...


class TailSubscription:
    """A `Subscription` that is woken by the log's `Tail`."""

    def __init__(self, source: Source, positions: Mapping[Partition, int]) -> None:
        self._source = source
        self._positions = dict(positions)
        self._partitions = list(self._positions)
        self._turn = 0
        self._grown = asyncio.Event()
        source.tail.follow(self._partitions, self._grown)

    @property
    def positions(self) -> Mapping[Partition, int]:
        return dict(self._positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            self._grown.clear()
            wake_at = deadline
            try:
                records, positions = await self._collect(max_records)
            except LogFullError:
                # SQLite cannot read either while its shared-memory file cannot grow: nothing has arrived, for now.
                records, wake_at = [], min(deadline, asyncio.get_running_loop().time() + RETRY_FULL_S)
            if records:
                self._positions.update(positions)  # no await between here and the return: cancelling loses nothing
                return records
            try:
                async with asyncio.timeout_at(wake_at):
                    await self._grown.wait()
            except TimeoutError:
                if wake_at == deadline:
                    return []

    async def close(self) -> None:
        self._source.tail.unfollow(self._partitions, self._grown)

    async def _collect(self, max_records: int) -> tuple[list[Record], dict[Partition, int]]:
        """What is there now, one partition after the other, beginning with another one each time."""
        found: list[Record] = []
        positions: dict[Partition, int] = {}
        room_bytes = limits.FETCH_SIZE_BYTES
        tail = self._source.tail
        count = len(self._partitions)
        first = self._turn
        for step in range(count):
            partition = self._partitions[(first + step) % count]
            start = self._positions[partition]
            head = tail.head(partition).next_offset
            if start >= head:
                continue
            room = max_records - len(found)
            if room <= 0 or (found and room_bytes <= 0):
                break
            records = await self._source.read(partition, start, max_records=room, max_size_bytes=room_bytes)
            self._turn = (first + step + 1) % count
            if not records:  # all of it was truncated
                self._positions[partition] = head
                continue
            found.extend(records)
            positions[partition] = records[-1].offset + 1
            room_bytes -= sum(len(record.head) + len(record.value) for record in records)
        return found, positions
