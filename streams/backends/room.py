"""A bounded queue's free room: producers wait, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """Counts the records and bytes of a queue; used on one event loop."""

    def __init__(self, records: int, size_bytes: int) -> None:
        self._records_limit = records
        self._size_limit = size_bytes
        self._records = 0
        self._size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def reserve(self, records: int, size_bytes: int) -> None:
        """Returns once there is room; anything fits into an empty queue. Cancelling reserves nothing."""
        if self._waiting or not self._fits(records, size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
                while not self._fits(records, size_bytes):
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting.appendleft(turn)
                    await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self._wake()
                raise
        self._records += records
        self._size += size_bytes
        self._wake()

    def release(self, records: int, size_bytes: int) -> None:
        """Gives back what was reserved."""
        self._records -= records
        self._size -= size_bytes
        assert self._records >= 0 and self._size >= 0
        self._wake()

    def _fits(self, records: int, size_bytes: int) -> bool:
        return self._records == 0 or (
            self._records + records <= self._records_limit and self._size + size_bytes <= self._size_limit
        )

    def _wake(self) -> None:
        """Lets the first in the queue look again; it wakes the next once it has its room."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting and (self._records == 0 or self._records < self._records_limit):
            self._waiting.popleft().set_result(None)
