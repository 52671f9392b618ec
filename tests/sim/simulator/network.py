"""The log as each simulated process reaches it: requests and answers take time, get lost, and outlive their sender."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rftd.ops import limits
from rftd.ops.errors import RftdError, UnreachableError
from rftd.streams.log.admission import admit
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from simulator.loop import SimLoop, SimProcess

ANSWER_TIMEOUT_S = 5.0
RETRY_S = 0.2
LONGEST_FETCH_S = 2.0


@dataclass
class Weather:
    """How requests fare; the second half of a world is calm."""

    latency_s: float = 0.002
    slow_p: float = 0.0
    """Of one way of a request: it takes up to `slow_s`."""
    slow_s: float = 2.0
    stale_p: float = 0.0
    """Of a partition in one fetch: what is new in it is not seen yet, so partitions interleave at will."""
    grace_s: float = 10.0
    """How long a client retries the same drafts before it raises; 0: every fault reaches its caller."""
    embedded: bool = False
    """The daemon holds the log: no daemon, no log."""


class Network:
    """Between processes and one `MemoryLog`."""

    def __init__(self, loop: SimLoop, log: MemoryLog, weather: Weather, *, seed: int) -> None:
        self.loop, self.log, self.weather = loop, log, weather
        self.random = random.Random(seed)
        self.server = loop.process("log", "log", 1)
        self.acked: list[tuple[bytes, Position]] = []
        """Every acknowledgement that a process received: an event id and its place."""
        self.has_daemon: Callable[[], bool] = lambda: True
        self.cut_off: dict[SimProcess, None] = {}
        self._heads: Heads = {}
        self._waiting: dict[SimSubscription, Bell] = {}

    def client(self, process: SimProcess) -> SimLog:
        """A process's way to the log."""
        return SimLog(self, process)

    def reachable(self, process: SimProcess) -> bool:
        """True if a packet between this process and the log arrives."""
        if process in self.cut_off:
            return False
        return process.role == "daemon" or not self.weather.embedded or self.has_daemon()

    def way_s(self) -> float:
        """Seconds that one way takes."""
        if self.random.random() < self.weather.slow_p:
            return self.random.uniform(0.05, self.weather.slow_s)
        return self.weather.latency_s * self.random.uniform(0.3, 2.0)

    async def call(self, process: SimProcess, work: Callable[[], Awaitable[Any]]) -> Any:
        """One request and its answer. Raises UnreachableError if either was lost: the outcome is unknown."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        context = self.server.context

        def arrive() -> None:
            # What a killed process had sent may still be in its machine's buffers, and lost with them.
            if not self.reachable(process) or (not process.alive and self.random.random() < 0.5):
                return
            self.loop.create_task(handle(), context=context)

        async def handle() -> None:
            try:
                outcome: Any = await work()
            except RftdError as error:
                outcome = error
            self.wake()
            self.loop.call_later(self.way_s(), settle, outcome, context=context)

        def settle(outcome: Any) -> None:
            if answer.done() or not self.reachable(process):
                return
            if isinstance(outcome, RftdError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self.loop.call_later(self.way_s(), arrive, context=context)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise UnreachableError("the log does not answer", fix="retry the same drafts") from None

    def wake(self) -> None:
        """Lets every subscription look again if the log has grown."""
        heads = self.log.tail.heads
        if heads != self._heads:
            self._heads = heads
            for bell in self._waiting.values():
                bell.ring()

    def follow(self, subscription: SimSubscription, bell: Bell) -> None:
        """Wakes it whenever something landed."""
        self._waiting[subscription] = bell

    def unfollow(self, subscription: SimSubscription) -> None:
        """Ends `follow`."""
        self._waiting.pop(subscription, None)


class SimLog:
    """An `EventLog` over the network, as a client of a socket or of a broker: it retries for a grace, then raises."""

    def __init__(self, network: Network, process: SimProcess) -> None:
        self.network, self.process = network, process

    @property
    def failure(self) -> RftdError | None:
        return None

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        admit(drafts)
        if not drafts:
            return []
        drafts = tuple(drafts)
        log = self.network.log
        positions: list[Position] = await self._persistently(lambda: log.append(drafts))
        self.network.acked += [(draft.id.bytes, place) for draft, place in zip(drafts, positions, strict=True)]
        return positions

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        log = self.network.log
        records: list[Record] = await self._persistently(
            lambda: log.read(partition, start, max_records=max_records, max_size_bytes=max_size_bytes)
        )
        return records

    def subscribe(self, positions: Mapping[Partition, int]) -> SimSubscription:
        return SimSubscription(self.network, self.process, positions)

    async def heads(self) -> Heads:
        heads: Heads = await self._persistently(self.network.log.heads)
        return heads

    async def check_heads(self, remembered: Heads) -> None:
        await self._persistently(lambda: self.network.log.check_heads(remembered))

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        await self._persistently(lambda: self.network.log.truncate(partition, before_offset))

    async def close(self) -> None:
        return

    async def _persistently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        loop, deadline_s = self.network.loop, None
        while True:
            try:
                return await self.network.call(self.process, work)
            except UnreachableError:
                if deadline_s is None:
                    deadline_s = loop.time() + self.network.weather.grace_s
                if loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(RETRY_S)


class Bell:
    """One waiter, until it rings or time is over: cheaper than an event within a time-out."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def clear(self) -> None:
        """Forgets that it rang."""
        self._rung = False

    def ring(self) -> None:
        """Wakes who waits, and whoever waits before the next `clear`."""
        self._rung = True
        self._wake()

    async def wait(self, longest_s: float) -> None:
        """Returns once it rings, or after so long."""
        if self._rung:
            return
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(longest_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SimSubscription:
    """A `Subscription`: what it sees of each partition is a prefix, of some later than of others."""

    def __init__(self, network: Network, process: SimProcess, positions: Mapping[Partition, int]) -> None:
        self._network, self._process = network, process
        self._positions = dict(positions)
        self._grown = Bell(network.loop)
        network.follow(self, self._grown)

    @property
    def positions(self) -> Mapping[Partition, int]:
        return dict(self._positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        network, loop = self._network, self._network.loop
        deadline_s = loop.time() + wait_s
        while True:
            self._grown.clear()
            if network.reachable(self._process):
                found = self._seen(max_records)
                if found:
                    await asyncio.sleep(min(network.way_s(), LONGEST_FETCH_S))
                    for record in found:
                        self._positions[record.partition] = record.offset + 1
                    return found
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return []
            await self._grown.wait(min(left_s, 0.5))

    async def close(self) -> None:
        self._network.unfollow(self)

    def _seen(self, max_records: int) -> list[Record]:
        found: list[Record] = []
        network = self._network
        heads = network.log.tail.heads
        grown = [each for each, start in self._positions.items() if each in heads and heads[each].next_offset > start]
        if len(grown) > 1:
            network.random.shuffle(grown)
        for partition in grown:
            if network.weather.stale_p and network.random.random() < network.weather.stale_p:
                continue
            found += network.log.stored(partition, self._positions[partition], max_records - len(found))
            if len(found) >= max_records:
                break
        return found
