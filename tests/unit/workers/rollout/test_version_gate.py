"""The gate: a pinned rollout runs on its version, or on the one that stands in for it."""

from __future__ import annotations

import asyncio

import pytest
from synthetic.until import until

from rftd.ops.errors import RolloutError
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


class Evaluations:
    """Evaluations at a gate, each held until it is let go."""

    def __init__(self, gate: VersionGate, tasks: asyncio.TaskGroup) -> None:
        self._gate = gate
        self._tasks = tasks
        self.held: dict[int, asyncio.Event] = {}

    def begin(self, version: int) -> asyncio.Task[None]:
        return self._tasks.create_task(self._hold(version))

    async def _hold(self, version: int) -> None:
        async with self._gate.evaluating(version, 0):
            assert self._gate.version == version
            self.held[version] = asyncio.Event()
            await self.held[version].wait()


@pytest.mark.anyio
async def test_weights_wait_until_an_evaluation_of_them_is_over() -> None:
    gate = VersionGate()
    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        await gate.set_version(3)
        evaluations.begin(3)
        evaluations.begin(5)
        await until(lambda: 3 in evaluations.held)
        assert gate.evaluates
        assert not gate.may_change
        assert gate.awaited == (5, 0)
        async with gate.passing(3, pinned=False), gate.passing(2, pinned=False), gate.passing(3, pinned=True):
            pass  # rollouts go on beside it
        evaluations.held[3].set()
        await until(lambda: not gate.evaluates)
        assert gate.may_change_to(5)
        await gate.set_version(5)
        await until(lambda: 5 in evaluations.held)
        evaluations.held[5].set()
    assert gate.evaluations == 0
    assert gate.may_change


@pytest.mark.anyio
async def test_weights_go_back_only_when_no_rollout_under_way_was_to_begin_on_newer_ones() -> None:
    gate = VersionGate()
    over, begun = asyncio.Event(), []
    await gate.set_version(6)

    async def rollout(version: int) -> None:
        async with gate.passing(version, pinned=False):
            begun.append(version)
            await over.wait()

    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        tasks.create_task(rollout(5))
        tasks.create_task(rollout(4))
        await until(lambda: len(begun) == 2)
        evaluations.begin(4)
        await until(lambda: gate.awaited == (4, 0))
        assert not gate.may_change_to(4), "a rollout that was to begin on 5 is under way"
        tasks.create_task(rollout(6))
        await until(lambda: gate.waiting == 1)
        tasks.create_task(rollout(3))
        await until(lambda: begun == [5, 4, 3])
        over.set()
        await until(lambda: gate.may_change_to(4))
        await gate.set_version(4)
        await until(lambda: 4 in evaluations.held)
        assert gate.waiting == 1, "it needs newer weights than the evaluation"
        evaluations.held[4].set()
        await until(lambda: not gate.evaluates)
        await gate.set_version(7)
    assert begun == [5, 4, 3, 6]


@pytest.mark.anyio
async def test_an_evaluation_that_is_called_off_or_refused_holds_up_nobody() -> None:
    gate = VersionGate()
    await gate.set_version(6)
    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        called_off = evaluations.begin(4)
        await until(lambda: gate.awaited == (4, 0))
        passing = tasks.create_task(_passed(gate, 6))
        await until(lambda: gate.waiting == 1)
        called_off.cancel()
        await passing
        refused = asyncio.ensure_future(_evaluated(gate, 5))
        await until(lambda: gate.awaited == (5, 0))
        await gate.refuse((5, 0), RolloutError("gone"))
        with pytest.raises(RolloutError, match="gone"):
            await refused
    assert gate.awaited is None
    assert gate.may_change_to(7)


async def _passed(gate: VersionGate, version: int) -> None:
    async with gate.passing(version, pinned=False):
        pass


async def _evaluated(gate: VersionGate, version: int) -> None:
    async with gate.evaluating(version, 0):
        pass
