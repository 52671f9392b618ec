"""More decisions than one append takes: they are appended in parts, in order, and again without a trace."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import CodecError
from rftd.ops.ids import SeededIds
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.append_retry import append_when_space, parts
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.envelope import Draft
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog, start_of
from rftd.streams.log.role import RoleLease
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio
EXPERIMENT = UUID(int=7)
SPINE = partition_of(topics.EXPERIMENTS, EXPERIMENT)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> SeededIds:
    return SeededIds(clock, 1)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


def paused(writer: Writer, count: int, chars: int = 0) -> list[Draft]:
    """So many drafts, numbered."""
    events = (ExperimentPaused(reason=f"{number}{'x' * chars}") for number in range(count))
    return [writer.draft(event, experiment=EXPERIMENT) for event in events]


async def reasons(log: EventLog) -> list[str]:
    """What is on the spine beside fences, in order."""
    found, offset = list[str](), 0
    while records := await log.read(SPINE, offset):
        events = [decode(record).event for record in records]
        found += [event.reason for event in events if isinstance(event, ExperimentPaused)]
        offset = records[-1].offset + 1
    return found


async def test_a_role_may_decide_more_in_one_turn_than_an_append_takes(log: EventLog, clock, ids) -> None:
    follower = Follower(log, RunState(EXPERIMENT), experiment=EXPERIMENT, positions=start_of([SPINE]), clock=clock)
    lease = await RoleLease.acquire(
        log,
        follower,
        role=Role(EXPERIMENT, "controller"),
        partitions=[SPINE],
        owner=ids.new(),
        clock=clock,
        ids=ids,
    )
    drafts = paused(lease.writer, limits.APPEND_RECORDS + 7)
    with pytest.raises(CodecError):
        await log.append(drafts)
    positions = await lease.append(drafts)
    assert len(positions) == len(drafts)
    assert positions == sorted(positions)
    assert await lease.append(drafts) == positions, "again without a trace"
    assert await reasons(log) == [str(number) for number in range(len(drafts))]
    await follower.close()


async def test_a_crash_between_two_parts_leaves_a_prefix(log: EventLog, clock, ids, monkeypatch) -> None:
    monkeypatch.setattr(limits, "APPEND_RECORDS", 3)
    drafts = paused(Writer(source="t", clock=clock, ids=ids), 8)
    append, calls = log.append, list[int]()

    async def dying(some: list[Draft]) -> object:
        calls.append(len(some))
        if len(calls) == 3:
            raise asyncio.CancelledError
        return await append(some)

    monkeypatch.setattr(log, "append", dying)
    with pytest.raises(asyncio.CancelledError):
        await append_when_space(log, drafts, clock=clock)
    assert calls == [3, 3, 2]
    assert await reasons(log) == [str(number) for number in range(6)]
    await append_when_space(log, drafts, clock=clock)
    assert await reasons(log) == [str(number) for number in range(8)]


async def test_parts_are_bounded_in_bytes_too(clock, ids, monkeypatch) -> None:
    monkeypatch.setattr(limits, "APPEND_SIZE_BYTES", 3000)
    drafts = paused(Writer(source="t", clock=clock, ids=ids), 5, chars=1200)
    assert [len(part) for part in parts(drafts)] == [2, 2, 1]
    monkeypatch.setattr(limits, "APPEND_SIZE_BYTES", 100)
    assert [len(part) for part in parts(drafts)] == [1] * 5, "one at least"
    assert list(parts([])) == []
