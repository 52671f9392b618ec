"""Turns on one device: who comes in when, what a cancelled wait leaves, when engines rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from synthetic.until import until

from rftd.ops.clock import SystemClock
from rftd.workers.devices.device_turn import DeviceTurn


class Engine:
    """Says when it rests."""

    def __init__(self) -> None:
        self.did: list[str] = []

    async def rest(self) -> None:
        self.did.append("rests")
        await asyncio.sleep(0)
        self.did.append("rested")

    async def wake(self) -> None:
        self.did.append("wakes")


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[DeviceTurn, DeviceTurn, DeviceTurn]]:
    """Two explorers and a trainer, each with locks of its own, as in processes of their own."""
    made = tuple(DeviceTurn(tmp_path / "job", SystemClock()) for _ in range(3))
    yield made[0], made[1], made[2]
    for turn in made:
        turn.close()


@pytest.mark.anyio
async def test_rollouts_overlap_and_a_step_waits_for_all_of_them(
    sides: tuple[DeviceTurn, DeviceTurn, DeviceTurn],
) -> None:
    one, two, trainer = sides
    did: list[str] = []

    async def step() -> None:
        async with trainer.training():
            did.append("step")

    async def late() -> None:
        async with one.rollout():
            did.append("late rollout")

    async with asyncio.TaskGroup() as tasks, one.rollout(), one.rollout(), two.rollout():
        tasks.create_task(step())
        await until(lambda: trainer.waiting)
        tasks.create_task(late())
        await until(lambda: one.waiting)
        assert not did, "who comes after the step has asked for its turn waits, though rollouts are inside"
    assert did == ["step", "late rollout"]


@pytest.mark.anyio
async def test_who_gives_up_waiting_holds_up_nobody(sides: tuple[DeviceTurn, DeviceTurn, DeviceTurn]) -> None:
    one, two, trainer = sides

    async def step() -> None:
        async with trainer.training():
            raise AssertionError("a rollout is inside")

    async def rollout() -> None:
        async with one.rollout():
            raise AssertionError("a step has the device")

    async with asyncio.TaskGroup() as tasks:
        async with one.rollout():
            waiting = tasks.create_task(step())
            await until(lambda: trainer.waiting)
            waiting.cancel()
            await asyncio.wait({waiting})
            async with two.rollout():
                assert two.waiting == trainer.waiting == 0
        async with trainer.training():
            waiting = tasks.create_task(rollout())
            await until(lambda: one.waiting)
            waiting.cancel()
            await asyncio.wait({waiting})
        async with trainer.training():
            pass


@pytest.mark.anyio
async def test_a_side_that_goes_away_gives_its_turn_up(sides: tuple[DeviceTurn, DeviceTurn, DeviceTurn]) -> None:
    one, _, trainer = sides
    async with one.rollout():
        one.close()  # as the end of its process does
        async with asyncio.timeout(20), trainer.training():
            pass


@pytest.mark.anyio
async def test_an_engine_rests_between_its_turns_and_not_within(
    sides: tuple[DeviceTurn, DeviceTurn, DeviceTurn],
) -> None:
    one, _, trainer = sides
    explores, trains = Engine(), Engine()
    one.share(explores)
    trainer.share(trains)
    one.share(object())  # one that cannot
    assert one.shared
    async with one.rollout():
        async with one.rollout():
            pass
        assert explores.did == []
    assert explores.did == ["rests", "rested"]
    async with trainer.training():
        assert trains.did == []
    async with one.rollout():
        assert explores.did[-1] == "wakes"
        assert trains.did == ["rests", "rested"]
    async with trainer.training():
        assert trains.did[-1] == "wakes"
