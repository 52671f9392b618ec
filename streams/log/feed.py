"""`Feed`: delivers a subscription's records to a handler, again if the handler raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rftd.streams.log.envelope import Record
from rftd.streams.log.log import Subscription
from rftd.streams.log.topics import Partition


class Feed:
    """Delivers records to one handler; a record on which the handler raises is delivered again before any later one.

    A subscription delivers each record once: without a feed, a reader continuing after an error would skip the
    remaining records.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._pending: Sequence[Record] = ()

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Offset of the next record to handle, by partition."""
        positions = self._subscription.positions
        if not self._pending:
            return positions
        # Backwards, so that for every partition the first pending record stands last and counts.
        first = {record.partition: record.offset for record in reversed(self._pending)}
        return {**positions, **first}

    async def pump(self, wait_s: float, take: Callable[[Record], None]) -> int:
        """Calls `take` with each arrived record, waiting at most `wait_s` for the first one; returns the number
        handled.

        Raises the errors of `take`.
        """
        records = self._pending or await self._subscription.next(wait_s=wait_s)
        handled = 0
        try:
            for record in records:
                take(record)
                handled += 1
        finally:
            # The record on which `take` raised is the first pending one.
            self._pending = records[handled:]
        return handled

    async def close(self) -> None:
        """Ends the subscription; unhandled records are read again by the next one."""
        await self._subscription.close()
