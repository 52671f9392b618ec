"""Any sequence of appends, retries, truncations and restarts leaves the log equal to a list model."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from synthetic.log.scan_chain import scan_chain

from rftd.ops.errors import UnreachableError
from rftd.streams.log.chain import GENESIS, Heads, Mark, link
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.sqlite.log import SqliteLog

PARTITIONS = (Partition("rftd.experiments", 0), Partition("rftd.tasks", 5), Partition("rftd.heartbeats", 0))

numbers = st.integers(0, 60)
batches = st.lists(numbers, max_size=40)
partitions = st.sampled_from(PARTITIONS)


def draft(number: int) -> Draft:
    """The draft with this id, always in the same partition and with the same bytes."""
    return Draft(PARTITIONS[number % 3], UUID(int=number + 1), b"head-%d" % number, bytes(number * 17))


class LogMachine(RuleBasedStateMachine):
    """The model: per partition a list of records and how many of them are truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model: dict[Partition, list[Record]] = {partition: [] for partition in PARTITIONS}
        self.truncated = dict.fromkeys(PARTITIONS, 0)
        self.places: dict[int, Position] = {}
        self.remembered: list[Heads] = []
        self.log: EventLog

    def teardown(self) -> None:
        self.runner.run(self.log.close())
        self.runner.close()

    def took(self, batch: list[int]) -> list[Position]:
        """Applies an append to the model."""
        for number in batch:
            if number not in self.places:
                item = draft(number)
                records = self.model[item.partition]
                chain = link(records[-1].chain if records else GENESIS, item.head, item.value)
                records.append(Record(item.partition, len(records), chain, item.head, item.value))
                self.places[number] = Position(item.partition, len(records) - 1)
        return [self.places[number] for number in batch]

    async def append(self, batch: list[int]) -> list[Position]:
        while True:
            try:
                return await self.log.append([draft(number) for number in batch])
            except UnreachableError:  # outcome unknown: the same drafts again
                continue

    @rule(batch=batches)
    def append_one(self, batch: list[int]) -> None:
        assert self.runner.run(self.append(batch)) == self.took(batch)

    @rule(batch=batches, producers=st.integers(2, 4))
    def append_the_same_concurrently(self, batch: list[int], producers: int) -> None:
        async def together() -> list[list[Position]]:
            return list(await asyncio.gather(*(self.append(batch) for _ in range(producers))))

        results = self.runner.run(together())
        assert results == [self.took(batch)] * producers

    @rule()
    def remember_heads(self) -> None:
        heads = self.runner.run(self.log.heads())
        assert heads == {
            partition: Mark(len(records), records[-1].chain) for partition, records in self.model.items() if records
        }
        self.remembered.append(heads)

    @rule(partition=partitions, before=st.integers(0, 25))
    def truncate(self, partition: Partition, before: int) -> None:
        self.runner.run(self.log.truncate(partition, before))
        gone = max(self.truncated[partition], min(before, len(self.model[partition])))
        self.truncated[partition] = gone
        self.places = {
            number: place
            for number, place in self.places.items()
            if place.partition != partition or place.offset >= gone
        }

    @rule(partition=partitions, start=st.integers(0, 30), count=st.integers(1, 10))
    def read(self, partition: Partition, start: int, count: int) -> None:
        first = max(start, self.truncated[partition])
        expected = self.model[partition][first : first + count]
        assert self.runner.run(self.log.read(partition, start, max_records=count)) == expected

    @invariant()
    def remembered_heads_are_there(self) -> None:
        for heads in self.remembered[-2:]:
            self.runner.run(self.log.check_heads(heads))

    @invariant()
    def a_follower_sees_all_of_it(self) -> None:
        async def follow() -> dict[Partition, list[Record]]:
            seen: dict[Partition, list[Record]] = {partition: [] for partition in PARTITIONS}
            follower = self.log.subscribe(dict.fromkeys(PARTITIONS, 0))
            while records := await follower.next(wait_s=0, max_records=16):
                for record in records:
                    seen[record.partition].append(record)
            await follower.close()
            return seen

        if hasattr(self, "log"):
            expected = {part: records[self.truncated[part] :] for part, records in self.model.items()}
            assert self.runner.run(follow()) == expected


class SqliteMachine(LogMachine):
    """The embedded log, with restarts."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rftd-"))
        self.log = self.runner.run(SqliteLog.open(self.folder))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.log.close())
        self.log = self.runner.run(SqliteLog.open(self.folder))

    @precondition(lambda self: any(self.model.values()))
    @rule()
    def scan(self) -> None:
        kept = sum(len(records) - self.truncated[part] for part, records in self.model.items())
        assert scan_chain(self.folder).records == kept

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class MemoryMachine(LogMachine):
    """The log in memory, with duplicates, delays, failures and unknown outcomes."""

    @initialize(seed=st.integers(0, 1000))
    def open(self, seed: int) -> None:
        self.log = MemoryLog(MemoryFaults(seed=seed, fail_p=0.1, unknown_p=0.2, duplicate_p=0.2, delay_p=0.3))


bounds = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True, database=None)
SqliteMachine.TestCase.settings = bounds
MemoryMachine.TestCase.settings = bounds
TestSqliteLog = SqliteMachine.TestCase
TestMemoryLog = MemoryMachine.TestCase
