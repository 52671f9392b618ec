"""Heads that fences and checkpoints remember, against the records that are there (rule 10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rftd.streams.chain import GENESIS
from rftd.streams.envelope import Record
from rftd.streams.events.experiment import HeadRef
from rftd.streams.topics import TRUTH, Partition

_SIZE_BYTES: Final = len(GENESIS)


class HeadsRemembered:
    """Takes in the chain of every record (16 bytes each), and every head that some event remembers."""

    def __init__(self) -> None:
        self._chains: dict[Partition, bytearray] = {partition: bytearray() for partition in TRUTH}
        self._refs: dict[HeadRef, str] = {}
        """Each with the first event that remembers it, in words."""

    def note(self, record: Record) -> None:
        """Takes in a record. Offsets of one partition grow; on Kafka they may leave gaps."""
        chains = self._chains[record.partition]
        chains.extend(bytes(record.offset * _SIZE_BYTES - len(chains)))
        chains.extend(record.chain)

    def remember(self, refs: Iterable[HeadRef], by: str) -> None:
        """Takes in what an event remembers. Streams that are no truth may forget."""
        for ref in refs:
            if ref.next_offset > 0 and ref.chain != GENESIS and Partition(ref.stream, ref.partition) in self._chains:
                self._refs.setdefault(ref, by)

    def findings(self) -> Iterator[str]:
        """What is remembered and not there, in words."""
        for ref, by in self._refs.items():
            chains = self._chains[Partition(ref.stream, ref.partition)]
            start, end = (ref.next_offset - 1) * _SIZE_BYTES, ref.next_offset * _SIZE_BYTES
            place = f"{ref.stream}/{ref.partition}@{ref.next_offset - 1}"
            if end > len(chains):
                yield f"{place} is gone: {by} remembers it"
            elif chains[start:end] not in (ref.chain, GENESIS):
                yield f"{place} is not the record that {by} remembers"
