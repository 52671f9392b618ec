"""`Slice`: the drafts of one append that go to one partition, until they have their places."""

from __future__ import annotations

import asyncio
from typing import Any

from rftd.streams.envelope import Draft, Position
from rftd.streams.topics import Partition

UNPLACED = -1


class Slice:
    """Drafts in order, their identities, and the offsets that they got so far."""

    def __init__(self, partition: Partition, deadline_s: float) -> None:
        self.partition = partition
        self.deadline_s = deadline_s
        self.drafts: list[Draft] = []
        self.keys: list[bytes] = []
        self.offsets: list[int] = []
        self.next = 0
        """Everything below this index is placed."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # An append that was cancelled leaves nobody to take its error.
        self.done.add_done_callback(looked_at)

    def add(self, draft: Draft, key: bytes) -> int:
        """The index of one more draft."""
        self.drafts.append(draft)
        self.keys.append(key)
        self.offsets.append(UNPLACED)
        return len(self.drafts) - 1

    def position(self, index: int) -> Position:
        """Where a draft landed."""
        return Position(self.partition, self.offsets[index])

    def place(self, index: int, offset: int) -> None:
        """Notes where a draft is in the log."""
        self.offsets[index] = offset

    def settle(self) -> bool:
        """True if every draft has its place; then `done` is set."""
        while self.next < len(self.offsets) and self.offsets[self.next] != UNPLACED:
            self.next += 1
        if self.next < len(self.offsets):
            return False
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: BaseException) -> None:
        """Ends the wait with an error."""
        if not self.done.done():
            self.done.set_exception(error)


def looked_at(future: asyncio.Future[Any]) -> None:
    """Marks its error as seen, where who waited for it may be gone."""
    if not future.cancelled():
        future.exception()
