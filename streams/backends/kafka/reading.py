"""Messages of Kafka as records, repeated ones marked; and where records are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rftd.streams.backends.kafka.headers import envelope_of
from rftd.streams.backends.kafka.seen import DUPLICATES_MAX, Window
from rftd.streams.envelope import Record, Stretch
from rftd.streams.topics import Partition


class Duplicates:
    """Where repeated records lie, found by whoever read past them; readers leave them out."""

    def __init__(self) -> None:
        self._offsets: dict[Partition, dict[int, None]] = {}

    def add(self, partition: Partition, offset: int) -> None:
        """Remembers one; the oldest are forgotten."""
        offsets = self._offsets.setdefault(partition, {})
        offsets[offset] = None
        if len(offsets) > DUPLICATES_MAX:
            del offsets[next(iter(offsets))]

    def holds(self, partition: Partition, offset: int) -> bool:
        """True if the record there is known to be a repetition."""
        return offset in self._offsets.get(partition, ())

    def without(self, records: list[Record]) -> list[Record]:
        """The records that are no repetition, as far as is known."""
        if not self._offsets or not records:
            return records
        repeated = self._offsets.get(records[0].partition)
        if not repeated:
            return records
        return [record for record in records if record.offset not in repeated]


class Gaps:
    """What readers found missing within partitions: offsets are dense, so whatever has none was deleted."""

    def __init__(self) -> None:
        self.found: dict[Partition, Stretch] = {}
        """From the first record that is missing to the last one, for each partition that has a gap."""

    def look(self, partition: Partition, due: int, messages: Sequence[Any]) -> int:
        """Compares the messages with the offset that is due; the one that is due after them."""
        for message in messages:
            if message.offset > due:
                first, end = self.found.get(partition, (due, message.offset))
                self.found[partition] = Stretch(min(first, due), max(end, message.offset))
            due = message.offset + 1
        return due


def records_of(
    partition: Partition, messages: Sequence[Any], window: Window | None, duplicates: Duplicates
) -> list[Record]:
    """The records of aiokafka's messages, all of one partition and in order."""
    found: list[Record] = []
    for message in messages:
        value = message.value or b""
        envelope = envelope_of(message.headers, value)
        if window is not None and not window.admit(envelope.key, message.offset):
            duplicates.add(partition, message.offset)
        found.append(Record(partition, message.offset, envelope.sum, envelope.head, value))
    return found
