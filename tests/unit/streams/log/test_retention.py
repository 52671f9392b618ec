"""Heartbeats are forgotten after their retention; truth never is."""

from __future__ import annotations

import pytest

from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events.worker import Heartbeat, WorkerLost
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.retention import enforce_retention
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog


class Enough(Exception):
    """The first round is over."""


class OneRound(ManualClock):
    async def sleep(self, delay_s: float) -> None:
        raise Enough


@pytest.mark.anyio
async def test_only_old_heartbeats_go() -> None:
    clock = OneRound()
    ids = SeededIds(clock, 1)
    writer = Writer(source="test", clock=clock, ids=ids)
    experiment, worker = ids.new(), ids.new()
    log = MemoryLog()
    for _ in range(3):
        beat = Heartbeat(worker=worker, role="explorer", slot=0, state="busy")
        lost = WorkerLost(worker=worker, role="explorer", slot=0, reason="test")
        await log.append([writer.draft(event, experiment=experiment) for event in (beat, lost)])
        clock.advance(2000.0)
    with pytest.raises(Enough):
        await enforce_retention(log, clock)
    kept = await log.read(Partition(topics.HEARTBEATS, 0), 0)
    assert [record.offset for record in kept] == [2]
    assert len(await log.read(Partition(topics.WORKERS, 0), 0)) == 3


@pytest.mark.anyio
async def test_a_heartbeat_of_a_clock_that_was_years_ahead_keeps_nothing_behind_it() -> None:
    clock = OneRound()
    ids = SeededIds(clock, 1)
    writer = Writer(source="test", clock=clock, ids=ids)
    log = MemoryLog()
    beat = Heartbeat(worker=ids.new(), role="explorer", slot=0, state="busy")
    clock.set_by(86_400.0 * 365)
    await log.append([writer.draft(beat, experiment=ids.new())])
    clock.set_by(-86_400.0 * 365)
    for _ in range(3):
        await log.append([writer.draft(beat, experiment=ids.new())])
        clock.advance(3000.0)
    with pytest.raises(Enough):
        await enforce_retention(log, clock)
    kept = await log.read(Partition(topics.HEARTBEATS, 0), 0)
    assert [record.offset for record in kept] == [3]
