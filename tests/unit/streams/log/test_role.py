"""Two owners of one role: the log alone decides, and the loser changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from rftd.ops.clock import SystemClock
from rftd.ops.errors import FencedError
from rftd.ops.ids import SystemIds
from rftd.streams.events.batch import ExperienceRetired
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.role import RoleLease
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.memory import MemoryFaults, MemoryLog

EXPERIMENT = UUID(int=7)
SPINE = partition_of(topics.EXPERIMENTS, EXPERIMENT)
TASKS = Partition(topics.TASKS, 3)


class Seen:
    """A fold that keeps the effective events."""

    def __init__(self) -> None:
        self.events: list[Decoded] = []

    def apply(self, decoded: Decoded) -> None:
        self.events.append(decoded)

    @property
    def reasons(self) -> list[str]:
        return [each.event.reason for each in self.events if isinstance(each.event, ExperienceRetired)]


class Owner:
    """One process that wants roles."""

    def __init__(self, log: MemoryLog) -> None:
        self.clock = SystemClock()
        self.ids = SystemIds(self.clock)
        self.log = log
        self.seen = Seen()
        self.id = self.ids.new()
        positions = {SPINE: 0, TASKS: 0}
        self.follower = Follower(log, self.seen, experiment=EXPERIMENT, positions=positions, clock=self.clock)

    async def acquire(self, role: str = "planner", partitions: tuple[Partition, ...] = (SPINE,)) -> RoleLease:
        return await RoleLease.acquire(
            self.log,
            self.follower,
            role=Role(EXPERIMENT, role),
            partitions=partitions,
            owner=self.id,
            clock=self.clock,
            ids=self.ids,
        )


def retired(reason: str) -> ExperienceRetired:
    return ExperienceRetired(experiences=(), reason=reason, uses=0, decided_at_ns=0)


def draft(lease: RoleLease, reason: str) -> Any:
    return lease.writer.draft(retired(reason), experiment=EXPERIMENT)


async def reader(log: MemoryLog) -> Owner:
    """Somebody who reads it all."""
    owner = Owner(log)
    await owner.follower.catch_up()
    return owner


@pytest.mark.anyio
async def test_a_zombie_is_told_and_changes_nothing() -> None:
    log = MemoryLog()
    old, new = Owner(log), Owner(log)
    old_lease = await old.acquire()
    await old_lease.append([draft(old_lease, "before")])
    await new.follower.catch_up()
    new_lease = await new.acquire()
    assert new_lease.writer.epoch == old_lease.writer.epoch + 1
    with pytest.raises(FencedError, match="planner"):
        await old_lease.append([draft(old_lease, "zombie")])
    await new_lease.append([draft(new_lease, "after")])
    with pytest.raises(FencedError):
        old_lease.check()
    for owner in (new, await reader(log)):
        assert owner.seen.reasons == ["before", "after"]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
async def test_of_two_that_acquire_at_once_one_wins(seed: int) -> None:
    log = MemoryLog(MemoryFaults(seed=seed, delay_p=0.7))
    owners = [Owner(log), Owner(log)]

    async def outcome(attempt: Coroutine[Any, Any, RoleLease]) -> RoleLease | None:
        try:
            return await attempt
        except FencedError:
            return None

    leases = await asyncio.gather(*(outcome(owner.acquire()) for owner in owners))
    (winner,) = (lease for lease in leases if lease is not None)
    await winner.append([draft(winner, "mine")])
    assert (await reader(log)).seen.reasons == ["mine"]


@pytest.mark.anyio
async def test_a_role_of_several_partitions_is_held_in_all_or_not_at_all() -> None:
    log = MemoryLog()
    first, second = Owner(log), Owner(log)
    lease = await first.acquire("dispatcher", (SPINE, TASKS))
    await second.follower.catch_up()
    await second.acquire("dispatcher", (TASKS,))
    with pytest.raises(FencedError, match=str(TASKS)):
        await lease.append([draft(lease, "spine")])


@pytest.mark.anyio
async def test_nothing_to_append_writes_nothing() -> None:
    log = MemoryLog()
    owner = Owner(log)
    lease = await owner.acquire()
    heads = await log.heads()
    assert await lease.append([]) == []
    assert await log.heads() == heads
