"""Admission of appends: limits checked before anything is written, the cut of large ones, and a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from rftd.ops import limits
from rftd.ops.errors import CodecError
from rftd.streams.log.envelope import Draft, Position


def admit(drafts: Sequence[Draft]) -> int:
    """The size of an append in bytes. Raises CodecError if it has too many records, or one that is too large."""
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
    """The drafts in order, cut into runs of at most `size_bytes`; a record that is larger is a run of its own."""
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
    """Drafts on their way to the log, and the future of their producer."""

    __slots__ = ("acknowledged", "drafts", "size_bytes")

    def __init__(self, drafts: Sequence[Draft], size_bytes: int, acknowledged: asyncio.Future[list[Position]]) -> None:
        self.drafts = drafts
        self.size_bytes = size_bytes
        self.acknowledged = acknowledged


async def append_in_parts(
    drafts: Sequence[Draft], append: Callable[[Sequence[Draft], int], Awaitable[list[Position]]]
) -> list[Position]:
    """The positions of admitted drafts, appended by `append(part, size_bytes)` in parts of one group commit each.

    After a crash between two parts a prefix is there, which the contract allows; the retry with the same ids lands only
    the rest. Raises CodecError as `admit`.
    """
    size = admit(drafts)
    if not drafts:
        return []
    if size <= limits.GROUP_COMMIT_SIZE_BYTES:
        return await append(drafts, size)
    positions: list[Position] = []
    for part in split(drafts, limits.GROUP_COMMIT_SIZE_BYTES):
        positions += await append(part, sum(draft.size_bytes for draft in part))
    return positions


class Room:
    """The free room of a bounded queue, in records and in bytes; used on one event loop."""

    def __init__(self, records: int, size_bytes: int) -> None:
        self._records_limit = records
        self._size_limit = size_bytes
        self._records = 0
        self._size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def reserve(self, records: int, size_bytes: int) -> None:
        """Returns once there is room; anything fits into an empty queue. Cancelling reserves nothing."""
        # First come, first served: a small append that slipped past a large one could let it wait for ever.
        if self._waiting or not self._fits(records, size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
                # `_wake` only says that something may fit by now: the turn is over, but the place in front is kept.
                while not self._fits(records, size_bytes):
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting.appendleft(turn)
                    await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                # Cancelled after its turn came: the wake-up must go on to the next, or the queue stands still.
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
        # An append larger than the whole room would otherwise wait for ever.
        return self._records == 0 or (
            self._records + records <= self._records_limit and self._size + size_bytes <= self._size_limit
        )

    def _wake(self) -> None:
        """Lets the first in the queue look again; it wakes the next once it has its room."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting and (self._records == 0 or self._records < self._records_limit):
            self._waiting.popleft().set_result(None)
