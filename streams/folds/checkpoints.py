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
    count: int = 0
    """How many were ever committed, but for what comes again."""
    _committed: dict[tuple[int, int], set[UUID]] = {}
    """Events of those that are kept, so that an older one that comes again does not replace a newer."""

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the checkpoints stream."""
        event = decoded.event
        if isinstance(event, CheckpointCommitted):
            key = event.step, event.generation
            known = self._committed.get(key, ())
            if key not in self._deleted and decoded.head.id not in known:
                self.count += 1
                self._committed[key] = {decoded.head.id, *known}
                self.kept[key] = event
        elif isinstance(event, CheckpointDeleted):
            key = event.step, event.generation
            self._deleted.add(key)
            self._committed.pop(key, None)
            self.kept.pop(key, None)
