"""A deterministic log in memory, with injected faults: for tests, simulations and third parties' suites."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from rftd.ops import limits
from rftd.ops.errors import RftdError, UnreachableError
from rftd.streams.log.admission import admit
from rftd.streams.log.chain import GENESIS, Heads, Mark, check_mark, different, link
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.tail import Tail, TailSubscription
from rftd.streams.log.topics import Partition

_OFFSET: Final = attrgetter("offset")
"""Function that returns the offset of a record."""


class MemoryFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults and their probabilities, drawn from `seed`; probabilities are per append unless stated otherwise."""

    seed: int = 0
    """Seed of the random numbers that decide about faults."""
    fail_p: float = 0.0
    """Probability that an append raises UnreachableError, with nothing landed."""
    unknown_p: float = 0.0
    """Probability that an append raises UnreachableError after a prefix of its drafts landed, perhaps none or all."""
    duplicate_p: float = 0.0
    """Probability that an append is delivered twice, as by a transport that retries; the second delivery adds nothing.
    """
    repeat_p: float = 0.0
    """Probability, per draft, that its record is stored in its partition once more, at a later offset, as after a retry
    to Kafka.
    """
    delay_p: float = 0.0
    """Probability, per append or read, of a delay by 1 to `delay_turns` turns of the event loop."""
    delay_turns: int = 8
    """Maximum turns of the event loop by which a call is delayed."""


NO_FAULTS = MemoryFaults()
"""Default faults: none."""


class MemoryLog:
    """An `EventLog` in memory, lost with the object; equal calls and seeds give equal logs and faults."""

    def __init__(self, faults: MemoryFaults = NO_FAULTS) -> None:
        """Begins empty; `faults` may be replaced at any time, its seed counts only here."""
        self.faults = faults
        self._random = np.random.default_rng(faults.seed)
        self._records: dict[Partition, list[Record]] = {}
        self._starts: dict[Partition, Mark] = {}
        self._positions: dict[bytes, Position] = {}
        self._tail = Tail({}, ring_size_bytes=0)
        self._closed = False

    @property
    def tail(self) -> Tail:
        """Heads and followers; the ring of records is empty."""
        return self._tail

    @property
    def failure(self) -> RftdError | None:
        """None: injected faults are raised to the caller, and not remembered."""
        return None

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends drafts, perhaps with a fault; see `EventLog.append`."""
        self._check_open()
        admit(drafts)
        await self._delay()
        if self._happens(self.faults.fail_p):
            raise UnreachableError("injected: the append did not land", fix="retry the same drafts")
        if self._happens(self.faults.unknown_p):
            # A prefix, as a backend may leave behind: a large append is several transactions or batches.
            self._take(drafts[: int(self._random.integers(len(drafts) + 1))])
            raise UnreachableError("injected: the append's outcome is unknown", fix="retry the same drafts")
        if self._happens(self.faults.duplicate_p):
            self._take(drafts)
        positions = self._take(drafts)
        self._repeat(drafts)
        # One turn of the loop, as in every real log: a caller may be cancelled after its append landed.
        await asyncio.sleep(0)
        return positions

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Reads records of a partition; see `EventLog.read`."""
        self._check_open()
        await self._delay()
        records: list[Record] = []
        size = 0
        for record in self.stored(partition, start, max_records):
            size += len(record.head) + len(record.value)
            if records and size > max_size_bytes:
                break
            records.append(record)
        return records

    def stored(self, partition: Partition, start: int, max_records: int) -> list[Record]:
        """Returns up to `max_records` records from `start` on, of any size, at once and without faults, for checks in
        tests.
        """
        records = self._records.get(partition, [])
        first = bisect_left(records, start, key=_OFFSET)
        return records[first : first + max_records]

    def subscribe(self, positions: Mapping[Partition, int]) -> TailSubscription:
        """Returns a subscription from these offsets on; see `EventLog.subscribe`."""
        self._check_open()
        return TailSubscription(self, positions)

    async def heads(self) -> Heads:
        """Returns the present heads of all partitions."""
        return self._tail.heads

    async def check_heads(self, remembered: Heads) -> None:
        """Raises LogLossError unless the log has every remembered head; see `EventLog.check_heads`."""
        for partition, mark in remembered.items():
            check_mark(partition, mark, head=self._tail.head(partition), start=self._start(partition))
            index = mark.next_offset - self._start(partition).next_offset
            if index > 0 and self._records[partition][index - 1].chain != mark.chain:
                raise different(partition, mark)

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records of a partition below an offset; see `EventLog.truncate`."""
        self._check_open()
        records = self._records.get(partition, [])
        keep = bisect_left(records, before_offset, key=_OFFSET)
        if keep:
            last = records[keep - 1]
            self._starts[partition] = Mark(last.offset + 1, last.chain)
            self._records[partition] = records[keep:]
            truncated = {record.offset for record in records[:keep]}
            self._positions = {
                id: position
                for id, position in self._positions.items()
                if position[0] != partition or position[1] not in truncated
            }

    async def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Replaces values of records; see `PayloadLog.rewrite`."""
        self._check_open()
        records = self._records.get(partition, [])
        for index, record in enumerate(records):
            if record.offset in values:
                records[index] = msgspec.structs.replace(record, value=values[record.offset], thin=thin)

    async def give_back(self) -> int:
        """Returns 0: memory is freed at once."""
        return 0

    async def used_bytes(self) -> int:
        """Returns the bytes of all records."""
        return sum(len(record.head) + len(record.value) for records in self._records.values() for record in records)

    async def close(self) -> None:
        """Ends all subscriptions; see `EventLog.close`."""
        self._closed = True
        self._tail.wake_all()

    def _take(self, drafts: Sequence[Draft]) -> list[Position]:
        """Stores new drafts, and returns the positions of all; a known id keeps its first position."""
        positions: list[Position] = []
        grown: dict[Partition, Mark] = {}
        for draft in drafts:
            position = self._positions.get(draft.id.bytes)
            if position is None:
                position = self._positions[draft.id.bytes] = self._write(draft, grown)
            positions.append(position)
        self._tail.advance((), grown)
        return positions

    def _repeat(self, drafts: Sequence[Draft]) -> None:
        """Stores some drafts once more, by the probability `repeat_p`."""
        grown: dict[Partition, Mark] = {}
        for draft in drafts:
            if self._happens(self.faults.repeat_p):
                self._write(draft, grown)
        self._tail.advance((), grown)

    def _write(self, draft: Draft, grown: dict[Partition, Mark]) -> Position:
        """Stores a record at the end of its partition, and notes the new head in `grown`."""
        offset, chain = grown.get(draft.partition) or self._tail.head(draft.partition)
        chain = link(chain, draft.head, draft.value)
        record = Record(draft.partition, offset, chain, draft.head, draft.value)
        self._records.setdefault(draft.partition, []).append(record)
        grown[draft.partition] = Mark(offset + 1, chain)
        return Position(draft.partition, offset)

    def _start(self, partition: Partition) -> Mark:
        """Returns the first retained offset of a partition, and the chain before it."""
        return self._starts.get(partition, Mark(0, GENESIS))

    def _happens(self, probability: float) -> bool:
        """Draws whether a fault happens; a probability of 0 draws nothing."""
        return probability > 0 and float(self._random.random()) < probability

    async def _delay(self) -> None:
        """Waits some turns of the event loop, by the probability `delay_p`."""
        if self._happens(self.faults.delay_p):
            for _ in range(int(self._random.integers(1, self.faults.delay_turns + 1))):
                await asyncio.sleep(0)

    def _check_open(self) -> None:
        """Raises UnreachableError if the log is closed."""
        if self._closed:
            raise UnreachableError("the log is closed", fix="open it again")
