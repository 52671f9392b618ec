"""`RepeatingLog`: a log in memory that takes an id as often as it comes, as Kafka may."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.streams.log.envelope import Draft, Position
from rftd.streams.memory import MemoryLog


class RepeatingLog(MemoryLog):
    """A log that takes an id as often as it comes, as Kafka may."""

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Writes each draft, whether or not its id is there."""
        positions = []
        for draft in drafts:
            self._positions.pop(draft.id.bytes, None)
            positions += await super().append([draft])
        return positions
