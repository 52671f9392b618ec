"""A subscription to Kafka: the shared one, on partitions that the tail follows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from rftd.ops import limits
from rftd.ops.errors import UnreachableError
from rftd.streams.kafka.tailing import Pressure, Tailing
from rftd.streams.log.envelope import Record
from rftd.streams.log.tail import Tail, TailSubscription
from rftd.streams.log.topics import Partition

RETRY_S: Final = 0.5
GRACE_S: Final = 5.0
"""A fetch that began in time may take this much longer."""


class FollowedLog(Protocol):
    """The part of the log that the subscription reads from."""

    @property
    def tail(self) -> Tail: ...

    async def read_known(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int, *, primed: bool = False
    ) -> list[Record]: ...


class _Source:
    """The log as `TailSubscription` wants it: reads that look for repetitions from before the start."""

    def __init__(self, log: FollowedLog) -> None:
        self._log = log

    @property
    def tail(self) -> Tail:
        return self._log.tail

    async def read(self, partition: Partition, start: int, *, max_records: int, max_size_bytes: int) -> list[Record]:
        return await self._log.read_known(partition, start, max_records, max_size_bytes, primed=True)


class KafkaSubscription(TailSubscription):
    """A `Subscription`; repeated records are left out."""

    def __init__(
        self, log: FollowedLog, tailing: Tailing, pressure: Pressure, positions: Mapping[Partition, int]
    ) -> None:
        super().__init__(_Source(log), positions)
        self._tailing = tailing
        self._pressure = pressure
        self._wanted = tuple(positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """The next records; while the brokers are away nothing arrives, which is no error."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            try:
                # Cut off here nothing is lost: the positions move only when records are returned.
                async with asyncio.timeout_at(deadline_s + GRACE_S):
                    return await self._next(max(0.0, deadline_s - loop.time()), max_records)
            except (UnreachableError, TimeoutError):
                if self._tailing.failed is not None:
                    raise
                if loop.time() >= deadline_s:
                    return []
                await asyncio.sleep(min(RETRY_S, deadline_s - loop.time()))

    async def _next(self, wait_s: float, max_records: int) -> list[Record]:
        await self._tailing.follow(self._wanted)
        # Noted before the wait as well: a follower that is not known yet would not hold the tail back.
        self._pressure.read(id(self), self.positions)
        records = await super().next(wait_s=wait_s, max_records=max_records)
        self._pressure.read(id(self), self.positions)
        return records

    async def close(self) -> None:
        self._pressure.gone(id(self))
        await super().close()
