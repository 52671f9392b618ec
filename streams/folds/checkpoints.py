"""Checkpoints that were committed and not deleted."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.codec import Decoded
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted


class Checkpoints(msgspec.Struct):
    """What was announced; whether a step on the spine is behind it is asked where it is used (rule 3)."""

    kept: dict[tuple[int, int], CheckpointCommitted] = {}
    """Committed and not deleted, by (step, generation); the last committed is the last."""
    _deleted: set[tuple[int, int]] = set()
    _committed: set[UUID] = set()
    """Events that were taken in, so that an older one that comes again does not replace a newer."""

    @property
    def count(self) -> int:
        """How many were ever committed."""
        return len(self._committed)

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the checkpoints stream."""
        event = decoded.event
        if isinstance(event, CheckpointCommitted):
            if decoded.head.id in self._committed:
                return
            self._committed.add(decoded.head.id)
            if (event.step, event.generation) not in self._deleted:
                self.kept[event.step, event.generation] = event
        elif isinstance(event, CheckpointDeleted):
            self._deleted.add((event.step, event.generation))
            self.kept.pop((event.step, event.generation), None)
