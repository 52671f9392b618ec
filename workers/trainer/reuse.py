"""`Reuse`: records that later batches may hold too, kept up to a size, so that they are not read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rftd.ops import limits
from rftd.streams import topics
from rftd.streams.envelope import Position, Record
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.topics import Partition


class Reuse:
    """A cache of the log: a record never changes, so who finds it here need not ask there. The oldest go first."""

    def __init__(self, most_size_bytes: int = limits.REUSED_RECORDS_SIZE_BYTES) -> None:
        self._most = most_size_bytes
        self._records: dict[Position, Record] = {}
        self.size_bytes = 0
        """Of what is kept."""

    def among(self, wanted: Collection[Position]) -> dict[Position, Record]:
        """Those of the records that are here."""
        if not self._records:
            return {}
        return {place: self._records[place] for place in wanted if place in self._records}

    def note(self, plan: BatchPlanned, records: Mapping[Position, Record]) -> None:
        """Keeps of a plan's records those of experiences that may be used again, and their groups; drops the others."""
        if plan.max_uses == 1:
            return
        groups = [Position(Partition(topics.TASKS, group.partition), group.offset) for group in plan.groups]
        for item in plan.experiences:
            place = Position(Partition(topics.EXPERIENCES, item.partition), item.offset)
            self._drop(place)
            if not plan.max_uses or item.use < plan.max_uses:
                self._keep(place, records[place])
                self._keep(groups[item.group], records[groups[item.group]])
        while self.size_bytes > self._most:
            self._drop(next(iter(self._records)))

    def _keep(self, place: Position, record: Record) -> None:
        if place not in self._records:
            self._records[place] = record
            self.size_bytes += len(record.head) + len(record.value)

    def _drop(self, place: Position) -> None:
        record = self._records.pop(place, None)
        if record is not None:
            self.size_bytes -= len(record.head) + len(record.value)
