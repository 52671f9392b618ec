"""What an append must satisfy before anything is written, how a large one is cut, and the room that it waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from rftd.ops import limits
from rftd.ops.errors import CodecError
from rftd.streams.envelope import Draft


def admit(drafts: Sequence[Draft]) -> int:
    """The bytes of an append that is within the limits. Raises CodecError for one that is not."""
    if len(drafts) > limits.APPEND_RECORDS:
        raise CodecError(
            f"an append of {len(drafts)} records is over the limit of {limits.APPEND_RECORDS}",
            fix="append in several calls",
        )
    total = 0
    for draft in drafts:
        size = len(draft.head) + len(draft.value)
        if size > limits.RECORD_SIZE_BYTES:
            raise CodecError(
                f"record {draft.id} of {size} bytes is over the limit of {limits.RECORD_SIZE_BYTES}",
                where=str(draft.partition),
                fix="store large bytes as an artifact and append its reference",
            )
        total += size
    return total


def split(drafts: Sequence[Draft], size_bytes: int) -> Iterator[Sequence[Draft]]:
    """The drafts in order, cut into runs of at most `size_bytes` (or of one record)."""
    start = total = 0
    for index, draft in enumerate(drafts):
        size = len(draft.head) + len(draft.value)
        if index > start and total + size > size_bytes:
            yield drafts[start:index]
            start = index
            total = 0
        total += size
    if start < len(drafts):
        yield drafts[start:]


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
