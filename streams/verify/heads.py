"""Heads remembered by fences and checkpoints, compared with the records in the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from rftd.streams.events.experiment import HeadRef, LostHead
from rftd.streams.log.chain import GENESIS
from rftd.streams.log.lost_records import Loss
from rftd.streams.log.topics import TRUTH, Partition
from rftd.streams.verify.scratch import Scratch, Spool

_NUMBERS: Final = {partition: number for number, partition in enumerate(TRUTH)}
"""A number for each partition that keeps all records, stored with a remembered head."""
_REF: Final = Struct("<HQ16sHQB")
"""The remembered partition, next offset and chain; partition and offset of the remembering event; its kind."""
_KINDS: Final = ("fence", "checkpoint.committed")
"""The kinds of events that remember heads, by their stored numbers."""


class _Chains:
    """The chains of one partition's records, by offset."""

    def __init__(self, scratch: Scratch) -> None:
        """Begins without a record."""
        self._chains = Spool(scratch, len(GENESIS))
        self._starts: list[int] = []
        """The first offsets of ranges without a gap."""
        self._indices: list[int] = []
        """The index in `_chains` of the first chain of each range."""
        self.end = 0
        """The offset after the last record."""

    def add(self, offset: int, chain: bytes) -> None:
        # Offsets are dense except for gaps, so chains lie one after the other and only ranges are stored.
        """Adds the chain of the record at `offset`; offsets ascend."""
        if offset != self.end or not self._starts:
            self._starts.append(offset)
            self._indices.append(len(self._chains))
        self._chains.add(chain)
        self.end = offset + 1

    def at(self, offset: int) -> bytes | None:
        """Returns the chain of the record at this offset; None if no record was read there."""
        stretch = bisect_right(self._starts, offset) - 1
        if stretch < 0:
            return None
        index = self._indices[stretch] + offset - self._starts[stretch]
        end = self._indices[stretch + 1] if stretch + 1 < len(self._indices) else len(self._chains)
        return self._chains.row(index) if index < end else None


class HeadsRemembered:
    """Every record's chain (16 bytes each, on disk), and every head remembered in an event, to be compared."""

    def __init__(self, scratch: Scratch) -> None:
        """Begins without a record or a remembered head."""
        self._chains = {partition: _Chains(scratch) for partition in TRUTH}
        self._refs = Spool(scratch, _REF.size)

    def note(self, partition: Partition, offset: int, chain: bytes) -> None:
        """Adds the chain of a record; offsets of one partition ascend."""
        self._chains[partition].add(offset, chain)

    def remember(self, refs: Iterable[HeadRef], kind: str, partition: Partition, offset: int) -> None:
        """Adds heads remembered in the event at this position; heads of streams that may be truncated, and heads
        without a chain, are left out.
        """
        for ref in refs:
            number = _NUMBERS.get(Partition(ref.stream, ref.partition))
            if number is not None and 0 < ref.next_offset < 1 << 48 and ref.chain != GENESIS and len(ref.chain) == 16:
                by = (_NUMBERS[partition], offset, _KINDS.index(kind))
                self._refs.add(_REF.pack(number, ref.next_offset, ref.chain, *by))

    def wrong(self) -> Iterator[tuple[Loss, bool]]:
        """Yields each remembered head that the records contradict, once; True if another record has its place, False if
        none.
        """
        yielded: set[tuple[int, int, bytes]] = set()
        for block in self._refs.blocks():
            for number, end, chain, by_number, by_offset, kind in _REF.iter_unpack(bytes(block)):
                chains = self._chains[TRUTH[number]]
                present_chain = chains.at(end - 1)
                # Skipped: an equal chain, a log without chains, a record missing below the end of the reading (its
                # damage or gap is a separate finding), and a head already yielded.
                if (
                    present_chain in (chain, GENESIS)
                    or (present_chain is None and end <= chains.end)
                    or (number, end, chain) in yielded
                ):
                    continue
                yielded.add((number, end, chain))
                lost = TRUTH[number]
                by = f"{_KINDS[kind]} at {TRUTH[by_number]}@{by_offset}"
                yield Loss(LostHead(lost.stream, lost.number, end, chain, by, chains.end)), present_chain is not None
