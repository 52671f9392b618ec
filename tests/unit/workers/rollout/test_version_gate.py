"""The gate: a pinned rollout runs on its version, or on the one that stands in for it."""

from __future__ import annotations

import asyncio

import pytest
from synthetic.until import until

from rftd.workers.rollout.version_gate import VersionGate


@pytest.mark.anyio
async def test_a_pinned_rollout_waits_for_its_version_and_keeps_it() -> None:
    gate, ran = VersionGate(), []

    async def rollout(version: int) -> None:
        async with gate.passing(version, pinned=True):
            ran.append(version)
            assert not gate.may_change

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rollout(2))
        tasks.create_task(rollout(4))
        await until(lambda: gate.waiting == 2)
        assert gate.wanted == 2
        await gate.set_version(3)
        assert gate.wanted == 2
        assert not ran
        await gate.set_version(2)
        await until(lambda: ran == [2] and gate.may_change)
        assert gate.wanted == 4
        await gate.set_version(4)
    assert ran == [2, 4]


@pytest.mark.anyio
async def test_a_lost_version_is_stood_in_for_until_the_weights_change() -> None:
    gate, ran = VersionGate(), []

    async def rollout(version: int) -> None:
        async with gate.passing(version, pinned=True):
            ran.append(version)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rollout(2))
        await until(lambda: gate.waiting)
        await gate.set_version(3)
        assert gate.wanted == 2
        await gate.serve(2)
        await until(lambda: ran == [2])
        tasks.create_task(rollout(2))
        await until(lambda: ran == [2, 2])
        await gate.set_version(4)
        late = tasks.create_task(rollout(2))
        await until(lambda: gate.waiting)
        assert gate.wanted == 2
        assert ran == [2, 2]
        late.cancel()
