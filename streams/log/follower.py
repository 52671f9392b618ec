"""`Follower`: reads partitions into a fold, and knows the offset reached in each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.errors import WaitTimeoutError
from rftd.streams.events.experiment import HeadRef
from rftd.streams.log.chain import Heads
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Decoded, Position, Record
from rftd.streams.log.feed import Feed
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition


class Fold(Protocol):
    """Pure state changed by effective events, one by one, without clock, chance or access to the log."""

    def apply(self, decoded: Decoded) -> None:
        """Applies one effective event. Events of one partition arrive in its order, partitions in any interleaving."""
        ...


class Follower:
    """Folds the effective events of one experiment, and those of no experiment, as `rftd.streams.log.effective` defines
    them.

    Payloads of other experiments' records are not decoded. Several tasks of one process may call a follower: they take
    turns.
    """

    def __init__(
        self,
        log: EventLog,
        fold: Fold,
        *,
        experiment: UUID,
        positions: Mapping[Partition, int],
        clock: Clock,
        fences: FenceView | None = None,
        heads: Heads | None = None,
    ) -> None:
        """Starts at `positions`; `fences` and `heads` describe the log there, for a fold restored from a snapshot."""
        self.fences = fences or FenceView()
        self.folded = 0
        """Number of records read by this follower."""
        self.witness: Callable[[Record], None] | None = None
        """Function called with every record read from now on, effective or not; None for none."""
        self._chains = {partition: mark.chain for partition, mark in (heads or {}).items()}
        self._log = log
        self._fold = fold
        self._wanted = of_experiment(experiment)
        self._clock = clock
        self._feed = Feed(log.subscribe(positions))
        self._one_reader = asyncio.Lock()

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Offset of the next record to fold, by partition."""
        return self._feed.positions

    def marks(self) -> tuple[HeadRef, ...]:
        """Returns the position reached in each partition, with the chain there (empty if no record was read)."""
        return tuple(
            HeadRef(partition.stream, partition.number, offset, self._chains.get(partition, b""))
            for partition, offset in sorted(self.positions.items())
        )

    async def pump(self, wait_s: float) -> int:
        """Folds arrived records, waiting at most `wait_s` for the first one; returns the number of records read."""
        async with self._one_reader:
            return await self._pump(wait_s)

    async def _pump(self, wait_s: float) -> int:
        """Waits up to `wait_s` for records and folds them; returns their number."""
        read = await self._feed.pump(wait_s, self._read)
        self.folded += read
        return read

    async def catch_up(self) -> None:
        """Folds everything up to the heads of the log at the time of the call."""
        # The heads at this moment: a log with steady appends could never be caught up with.
        heads = await self._log.heads()
        await self.reach(
            [Position(p, heads[p].next_offset - 1) for p in self.positions if p in heads and heads[p].next_offset]
        )

    async def reach(self, targets: Iterable[Position], *, timeout_s: float = 60.0) -> None:
        """Folds until every target record was read. Raises WaitTimeoutError after `timeout_s` seconds."""
        goals: dict[Partition, int] = {}
        for position in targets:
            goals[position.partition] = max(position.offset, goals.get(position.partition, 0))
        deadline = self._clock.monotonic_s() + timeout_s
        while not self._has_read(goals):
            remaining = deadline - self._clock.monotonic_s()
            if remaining <= 0:
                raise WaitTimeoutError(
                    f"the log did not deliver {goals} within {timeout_s} s", fix="see the daemon's log for its errors"
                )
            async with self._one_reader:
                # A reader before us may have read our targets; and at most a second at once, as other tasks wait for
                # this lock.
                if not self._has_read(goals):
                    await self._pump(min(remaining, 1.0))

    def _has_read(self, goals: Mapping[Partition, int]) -> bool:
        """True if these offsets of the followed partitions are folded; partitions not followed count as read."""
        positions = self.positions
        return all(positions.get(partition, offset + 1) > offset for partition, offset in goals.items())

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """A context during which nothing is folded, so that the fold may be read on another thread."""
        async with self._one_reader:
            yield

    async def close(self) -> None:
        """Ends the subscription; the fold and the fences keep their last state."""
        await self._feed.close()

    def _read(self, record: Record) -> None:
        """Folds one record if it has an effect, and remembers its chain."""
        decoded = effective(record, self.fences, self._wanted)
        if decoded is not None:
            self._fold.apply(decoded)
        if self.witness is not None:
            self.witness(record)
        # Last: a record on which the fold raises is delivered again, and no mark may lie above it.
        self._chains[record.partition] = record.chain
