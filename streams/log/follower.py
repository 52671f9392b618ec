"""A follower: reads some partitions into a fold, and knows how far it has come."""

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
from rftd.streams.log.codec import Decoded
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.feed import Feed
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition


class Fold(Protocol):
    """Pure state: takes effective events one by one."""

    def apply(self, decoded: Decoded) -> None:
        """Takes one event in."""
        ...


class Follower:
    """Feeds the effective events of one experiment (and those of no experiment) to a fold.

    Which those are is said in `rftd.streams.log.effective`; of other experiments' records the payload is not decoded.
    Several tasks of one process may call it: they take turns.
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
        """`fences` and `heads` are those at `positions`, if the fold did not begin at the beginning."""
        self.fences = fences or FenceView()
        self.folded = 0
        """Records that were read."""
        self.witness: Callable[[Record], None] | None = None
        """Told of every record that is read from now on, whether it has an effect or not."""
        self._chains = {partition: mark.chain for partition, mark in (heads or {}).items()}
        self._log = log
        self._fold = fold
        self._wanted = of_experiment(experiment)
        self._clock = clock
        self._feed = Feed(log.subscribe(positions))
        self._one_reader = asyncio.Lock()

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset to be folded, for each partition."""
        return self._feed.positions

    def marks(self) -> tuple[HeadRef, ...]:
        """The place in each partition that the fold has come to, with the chain there if it was read."""
        return tuple(
            HeadRef(partition.stream, partition.number, offset, self._chains.get(partition, b""))
            for partition, offset in sorted(self.positions.items())
        )

    async def pump(self, wait_s: float) -> int:
        """Folds what has arrived, waiting at most `wait_s` for the first record; returns how many were read."""
        async with self._one_reader:
            return await self._pump(wait_s)

    async def _pump(self, wait_s: float) -> int:
        read = await self._feed.pump(wait_s, self._read)
        self.folded += read
        return read

    async def catch_up(self) -> None:
        """Folds everything up to the heads that the log had when this was called."""
        # The heads of now: a log that others append to all the time would never be caught up with.
        heads = await self._log.heads()
        await self.reach(
            [Position(p, heads[p].next_offset - 1) for p in self.positions if p in heads and heads[p].next_offset]
        )

    async def reach(self, wanted: Iterable[Position], *, timeout_s: float = 60.0) -> None:
        """Folds until each wanted record was read. Raises WaitTimeoutError."""
        goals: dict[Partition, int] = {}
        for place in wanted:
            goals[place.partition] = max(place.offset, goals.get(place.partition, 0))
        deadline = self._clock.monotonic_s() + timeout_s
        while not self._has_read(goals):
            remaining = deadline - self._clock.monotonic_s()
            if remaining <= 0:
                raise WaitTimeoutError(
                    f"the log did not deliver {goals} within {timeout_s} s", fix="see the daemon's log for its errors"
                )
            async with self._one_reader:
                # Whoever read before us may have read what we wait for; and not for longer than a second at once, for
                # the others wait for this lock.
                if not self._has_read(goals):
                    await self._pump(min(remaining, 1.0))

    def _has_read(self, goals: Mapping[Partition, int]) -> bool:
        """True if these offsets of the followed partitions are folded; others are nobody's here."""
        positions = self.positions
        return all(positions.get(partition, offset + 1) > offset for partition, offset in goals.items())

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Folds nothing while the block runs, whoever asks for it: the fold may be read on another thread."""
        async with self._one_reader:
            yield

    async def close(self) -> None:
        """Ends the subscription."""
        await self._feed.close()

    def _read(self, record: Record) -> None:
        decoded = effective(record, self.fences, self._wanted)
        if decoded is not None:
            self._fold.apply(decoded)
        if self.witness is not None:
            self.witness(record)
        # Last: a record on which the fold raises is handed out again, and no mark may lie above it.
        self._chains[record.partition] = record.chain
