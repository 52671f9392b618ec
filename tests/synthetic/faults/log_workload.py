"""The records that a log is given while its disk misbehaves, and those that must be in it afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from synthetic.log.scan_chain import scan_chain

from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.log import SqliteLog, schema

PARTITIONS = (Partition("rftd.experiments", 0), Partition("rftd.tasks", 3))


def draft(number: int) -> Draft:
    """The draft with this id, always in the same partition and with the same bytes."""
    size = (37, 700, 3000, 11)[number % 4] * (1 + number % 3)
    return Draft(PARTITIONS[number % 5 == 0], UUID(int=number + 1), b"head-%d" % number, bytes([number % 251]) * size)


class Oracle:
    """Knows what was acknowledged."""

    def __init__(self) -> None:
        self.places: dict[int, Position] = {}
        self.next = 0
        self.wrong: list[str] = []
        """Appends of a known id that were given another position."""

    def batch(self, count: int) -> list[int]:
        """Numbers that were never appended."""
        self.next += count
        return list(range(self.next - count, self.next))

    async def append(self, log: SqliteLog, numbers: list[int]) -> None:
        """Raises what the log raises; what was acknowledged is remembered."""
        for number, place in zip(numbers, await log.append([draft(each) for each in numbers]), strict=True):
            if self.places.setdefault(number, place) != place:
                self.wrong.append(f"{number} is at {place} and at {self.places[number]}")

    async def broken(self, folder: Path) -> list[str]:
        """Promises that the log in `folder` does not keep: acknowledged and not there, or there and never given.

        Raises the log's error if it does not open.
        """
        found: dict[int, Position] = {}
        broken = list(self.wrong)
        log = await SqliteLog.open(folder)
        try:
            for partition in PARTITIONS:
                for record in await log.read(partition, 0, max_records=1 << 20, max_size_bytes=1 << 30):
                    number = int(record.head.removeprefix(b"head-"))
                    known = draft(number)
                    if (
                        number in found
                        or number >= self.next
                        or (known.partition, known.value) != (partition, record.value)
                    ):
                        broken.append(f"{partition}@{record.offset} holds {record.head!r}, which was not given so")
                    found[number] = Position(partition, record.offset)
        finally:
            await log.close()
        broken += [f"{place} is lost" for number, place in self.places.items() if found.get(number) != place]
        if scan_chain(folder).records != len(found):
            broken.append("the scan counts other records")
        return broken


async def random_life(folder: Path, oracle: Oracle, chance: random.Random, appends: int) -> None:
    """Opens the log and appends, appends again what is known, and reopens, until something fails or it is done."""
    log = await SqliteLog.open(folder)
    try:
        for _ in range(appends):
            numbers = oracle.batch(chance.randint(1, 6))
            if oracle.places and chance.random() < 0.2:
                numbers += chance.sample(sorted(oracle.places), min(3, len(oracle.places)))
            await oracle.append(log, numbers)
            if chance.random() < 0.08:
                await log.close()
                log = await SqliteLog.open(folder)
    finally:
        await log.close()


@contextmanager
def small_checkpoints(pages: int = 6) -> Iterator[None]:
    """The write-ahead log is moved into the database every few commits, and ids into their table."""
    names = ("CHECKPOINT_PAGES", "CHECKPOINT_REST_PAGES", "CHECKPOINT_FORCED_PAGES", "IDS_PER_INDEXING")
    before = {name: getattr(schema, name) for name in names}
    for name, value in zip(names, (pages, max(1, pages // 2), 4 * pages, 2 * pages), strict=True):
        setattr(schema, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(schema, name, value)
