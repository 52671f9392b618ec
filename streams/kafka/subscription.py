"""`KafkaSubscription`: a subscription to partitions read by the process's one tailing consumer."""

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
"""Pause in seconds after a failed read."""
GRACE_S: Final = 5.0
"""Additional seconds for a fetch that began within the wait."""


class FollowedLog(Protocol):
    """The methods of the log used by a subscription."""

    @property
    def tail(self) -> Tail: ...

    async def read_known(
        self, partition: Partition, start: int, max_records: int, max_size_bytes: int, *, primed: bool = False
    ) -> list[Record]: ...


class _Source:
    """The log as read by `TailSubscription`, with repetitions of records before the start recognised."""

    def __init__(self, log: FollowedLog) -> None:
        """Reads from `log`."""
        self._log = log

    @property
    def tail(self) -> Tail:
        """The newest records in memory."""
        return self._log.tail

    async def read(self, partition: Partition, start: int, *, max_records: int, max_size_bytes: int) -> list[Record]:
        """Reads records from `start` on, skipping repetitions of records before."""
        return await self._log.read_known(partition, start, max_records, max_size_bytes, primed=True)


class KafkaSubscription(TailSubscription):
    """A `Subscription` to partitions followed by `Tailing`, skipping repeated records."""

    def __init__(
        self, log: FollowedLog, tailing: Tailing, pressure: Pressure, positions: Mapping[Partition, int]
    ) -> None:
        """Begins at `positions`, the next offset of each followed partition."""
        super().__init__(_Source(log), positions)
        self._tailing = tailing
        self._pressure = pressure
        self._partitions_followed = tuple(positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """Returns the next records, waiting `wait_s` seconds, and `GRACE_S` more for a fetch under way; empty, and no
        error, while the brokers do not answer.

        Raises the error that ended the tail for good.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            try:
                # A cut here loses nothing: the positions move only when records are returned.
                async with asyncio.timeout_at(deadline_s + GRACE_S):
                    return await self._next(max(0.0, deadline_s - loop.time()), max_records)
            except (UnreachableError, TimeoutError):
                if self._tailing.failed is not None:
                    raise
                if loop.time() >= deadline_s:
                    return []
                await asyncio.sleep(min(RETRY_S, deadline_s - loop.time()))

    async def _next(self, wait_s: float, max_records: int) -> list[Record]:
        """Waits up to `wait_s` for new records of the followed partitions, and reports the read positions to
        `Pressure`.
        """
        await self._tailing.follow(self._partitions_followed)
        # Noted before the wait as well: an unknown follower would not hold the tail back.
        self._pressure.read(id(self), self.positions)
        records = await super().next(wait_s=wait_s, max_records=max_records)
        self._pressure.read(id(self), self.positions)
        return records

    async def close(self) -> None:
        """Ends the subscription, so that its unread records no longer pause the tail."""
        self._pressure.gone(id(self))
        await super().close()
