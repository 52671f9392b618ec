"""`Feed`: hands out what a subscription reads, and nothing is passed before it was taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rftd.streams.log.envelope import Record
from rftd.streams.log.log import Subscription
from rftd.streams.log.topics import Partition


class Feed:
    """Records for one taker. One that it raises on is handed out again, and before all that follow it.

    What a subscription gave out it does not give again: whoever went on after an error would skip the rest.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._left: Sequence[Record] = ()

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset to be taken, for each partition."""
        positions = self._subscription.positions
        if not self._left:
            return positions
        # Backwards, so that of each partition the first record that is left stands last and counts.
        first = {record.partition: record.offset for record in reversed(self._left)}
        return {**positions, **first}

    async def pump(self, wait_s: float, take: Callable[[Record], None]) -> int:
        """Hands out what has arrived, waiting at most `wait_s` for the first record; how many were taken.

        Raises what `take` raises.
        """
        records = self._left or await self._subscription.next(wait_s=wait_s)
        taken = 0
        try:
            for record in records:
                take(record)
                taken += 1
        finally:
            # The record that `take` raised on is the first of those that are left.
            self._left = records[taken:]
        return taken

    async def close(self) -> None:
        """Ends the subscription."""
        await self._subscription.close()
