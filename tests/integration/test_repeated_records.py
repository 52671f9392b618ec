"""A run to its end on a log that repeats records, as Kafka may long after the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.run import Run
from rftd.ops import limits
from rftd.ops.logs import logger
from rftd.streams.folds.spine import Status
from rftd.streams.log.chain import GENESIS, Heads, Mark, link
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify


class EchoingLog(MemoryLog):
    """After some appends an earlier record comes again, behind whatever is in its partition by then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.echoes = 0
        self._chance = np.random.default_rng(seed)
        self._past: list[Draft] = []

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        positions = await super().append(drafts)
        self._past += drafts
        for _ in range(int(self._chance.integers(0, 3))):
            again = self._past[int(self._chance.integers(len(self._past)))]
            first = self._positions.pop(again.id.bytes)
            self._take([again])
            self._positions[again.id.bytes] = first
            self.echoes += 1
        return positions

    async def heads(self) -> Heads:
        """The heads, each with a digest of its last record alone, as on Kafka."""
        last = {p: self._records[p][mark.next_offset - 1] for p, mark in (await super().heads()).items()}
        return {p: Mark(r.offset + 1, link(GENESIS, r.head, r.value)) for p, r in last.items()}

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Each record with a digest of itself alone, as on Kafka."""
        found = await super().read(partition, start, max_records=max_records, max_size_bytes=max_size_bytes)
        return [Record(r.partition, r.offset, link(GENESIS, r.head, r.value), r.head, r.value) for r in found]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_repeated_records_change_nothing(tmp_path: Path, clock, ids, fake_world, seed: int) -> None:
    log = EchoingLog(seed)
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(90):
        await run.drive()
    state = run.state
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    assert state.spine.version == 8
    books = state.replay_buffer.counts()
    assert books["balance"] == 0
    assert books["waiting"] == 0
    assert books["planned"] == 5 * 16
    report = await verify(log, chained=False)
    assert report.clean, report.findings
    assert 0 < report.repeated <= log.echoes
    assert report.experiments[0].executions == 8
    registry = Registry(log)
    await registry.catch_up()
    assert registry.entries[experiment].status is Status.COMPLETED
    await registry.close()
