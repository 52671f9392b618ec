"""Admission of appends: checks limits before writing, cuts large appends into parts, and limits the queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from rftd.ops import limits
from rftd.ops.errors import CodecError
from rftd.streams.log.envelope import Draft, Position


def admit(drafts: Sequence[Draft]) -> int:
    """Returns the size of an append in bytes; raises CodecError for too many records or for a record over the size
    limit.
    """
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
    """Yields the drafts in order, in parts of at most `size_bytes`; a larger record is a part by itself."""
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


class QueuedAppend:
    """Drafts in the writer's queue, with the future through which the producer gets their positions."""

    __slots__ = ("acknowledged", "drafts", "size_bytes")

    def __init__(self, drafts: Sequence[Draft], size_bytes: int, acknowledged: asyncio.Future[list[Position]]) -> None:
        self.drafts = drafts
        self.size_bytes = size_bytes
        self.acknowledged = acknowledged


async def append_in_parts(
    drafts: Sequence[Draft], append: Callable[[Sequence[Draft], int], Awaitable[list[Position]]]
) -> list[Position]:
    """Appends admitted drafts by `append(part, size_bytes)` in parts of one group commit each; returns their positions.

    A crash between two parts leaves a prefix, as the contract allows; a retry with equal ids appends only the missing
    drafts. Raises CodecError as `admit`.
    """
    size = admit(drafts)
    if not drafts:
        return []
    if size <= limits.GROUP_COMMIT_SIZE_BYTES:
        return await append(drafts, size)
    positions: list[Position] = []
    for chunk in split(drafts, limits.GROUP_COMMIT_SIZE_BYTES):
        positions += await append(chunk, sum(draft.size_bytes for draft in chunk))
    return positions


class Room:
    """Free capacity of a queue limited in records and bytes; used on one event loop."""

    def __init__(self, records: int, size_bytes: int) -> None:
        self._records_limit = records
        self._size_limit = size_bytes
        self._records = 0
        self._size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def reserve(self, records: int, size_bytes: int) -> None:
        """Waits for capacity, and reserves it; an empty queue accepts any size. Cancelling reserves nothing."""
        # First come, first served: small appends slipping past a large one could let the large one wait for ever.
        if self._waiting or not self._fits(records, size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
                # `_wake` is only a hint: something may fit by now. A waiter without room goes back to the front of the
                # queue.
                while not self._fits(records, size_bytes):
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting.appendleft(turn)
                    await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                # Cancelled after the wake-up: pass the wake-up to the next waiter, or the queue stands still.
                self._wake()
                raise
        self._records += records
        self._size += size_bytes
        self._wake()

    def release(self, records: int, size_bytes: int) -> None:
        """Frees reserved capacity, and wakes the first waiter."""
        self._records -= records
        self._size -= size_bytes
        assert self._records >= 0 and self._size >= 0
        self._wake()

    def _fits(self, records: int, size_bytes: int) -> bool:
        # An append larger than the whole room would otherwise wait for ever.
        """True if an append fits beside those under way; always if there is none, so that a large one waits for the
        others only.
        """
        return self._records == 0 or (
            self._records + records <= self._records_limit and self._size + size_bytes <= self._size_limit
        )

    def _wake(self) -> None:
        """Wakes the first waiter; a waiter wakes the next one after reserving its room."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting and (self._records == 0 or self._records < self._records_limit):
            self._waiting.popleft().set_result(None)
