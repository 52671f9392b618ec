"""The gate: a pinned rollout runs on its version, or on the one that stands in for it."""

from __future__ import annotations

import asyncio

import pytest
from synthetic.until import until

from rftd.ops.errors import RolloutError
from rftd.workers.rollout.version_gate import UseKind, VersionGate, WeightsUse


def pinned(version: int) -> WeightsUse:
    return WeightsUse(UseKind.PINNED, version)


def unpinned(version: int) -> WeightsUse:
    return WeightsUse(UseKind.ROLLOUT, version)


def waiting(gate: VersionGate) -> int:
    """The number of rollouts waiting for weights."""
    return len(gate._waiting[UseKind.PINNED]) + len(gate._waiting[UseKind.ROLLOUT])


@pytest.mark.anyio
async def test_a_pinned_rollout_waits_for_its_version_and_keeps_it() -> None:
    gate, ran = VersionGate(), []

    async def rollout(version: int) -> None:
        async with gate.using(pinned(version)):
            ran.append(version)
            assert gate.held

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rollout(2))
        tasks.create_task(rollout(4))
        await until(lambda: waiting(gate) == 2)
        assert gate.awaited_by_pinned == 2
        gate.set_weights(3)
        assert gate.awaited_by_pinned == 2
        assert not ran
        gate.set_weights(2)
        await until(lambda: ran == [2] and not gate.held)
        assert gate.awaited_by_pinned == 4
        gate.set_weights(4)
    assert ran == [2, 4]


@pytest.mark.anyio
async def test_a_lost_version_is_stood_in_for_until_the_weights_change() -> None:
    gate, ran = VersionGate(), []

    async def rollout(version: int) -> None:
        async with gate.using(pinned(version)):
            ran.append(version)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rollout(2))
        await until(lambda: waiting(gate))
        gate.set_weights(3)
        assert gate.awaited_by_pinned == 2
        gate.stand_in(2)
        await until(lambda: ran == [2])
        tasks.create_task(rollout(2))
        await until(lambda: ran == [2, 2])
        gate.set_weights(4)
        late = tasks.create_task(rollout(2))
        await until(lambda: waiting(gate))
        assert gate.awaited_by_pinned == 2
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
        async with self._gate.using(WeightsUse(UseKind.EVALUATION, version)):
            assert self._gate.version == version
            self.held[version] = asyncio.Event()
            await self.held[version].wait()


@pytest.mark.anyio
async def test_weights_wait_until_an_evaluation_of_them_is_over() -> None:
    gate = VersionGate()
    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        gate.set_weights(3)
        evaluations.begin(3)
        evaluations.begin(5)
        await until(lambda: 3 in evaluations.held)
        assert gate.held
        assert gate.held
        assert gate.awaited_by_evaluation == (5, 0)
        async with gate.using(unpinned(3)), gate.using(unpinned(2)), gate.using(pinned(3)):
            pass  # rollouts go on beside it
        evaluations.held[3].set()
        await until(lambda: not gate.held)
        assert gate.may_go_to(5)
        gate.set_weights(5)
        await until(lambda: 5 in evaluations.held)
        evaluations.held[5].set()
    assert not gate.held and gate.awaited_by_evaluation is None
    assert not gate.held


@pytest.mark.anyio
async def test_weights_go_back_only_when_no_rollout_under_way_was_to_begin_on_newer_ones() -> None:
    gate = VersionGate()
    over, begun = asyncio.Event(), []
    gate.set_weights(6)

    async def rollout(version: int) -> None:
        async with gate.using(unpinned(version)):
            begun.append(version)
            await over.wait()

    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        tasks.create_task(rollout(5))
        tasks.create_task(rollout(4))
        await until(lambda: len(begun) == 2)
        evaluations.begin(4)
        await until(lambda: gate.awaited_by_evaluation == (4, 0))
        assert not gate.may_go_to(4), "a rollout that was to begin on 5 is under way"
        tasks.create_task(rollout(6))
        await until(lambda: waiting(gate) == 1)
        tasks.create_task(rollout(3))
        await until(lambda: begun == [5, 4, 3])
        over.set()
        await until(lambda: gate.may_go_to(4))
        gate.set_weights(4)
        await until(lambda: 4 in evaluations.held)
        assert waiting(gate) == 1, "it needs newer weights than the evaluation"
        evaluations.held[4].set()
        await until(lambda: not gate.held)
        gate.set_weights(7)
    assert begun == [5, 4, 3, 6]


@pytest.mark.anyio
async def test_an_evaluation_that_is_called_off_or_refused_holds_up_nobody() -> None:
    gate = VersionGate()
    gate.set_weights(6)
    async with asyncio.TaskGroup() as tasks:
        evaluations = Evaluations(gate, tasks)
        called_off = evaluations.begin(4)
        await until(lambda: gate.awaited_by_evaluation == (4, 0))
        passing = tasks.create_task(_passed(gate, 6))
        await until(lambda: waiting(gate) == 1)
        called_off.cancel()
        await passing
        refused = asyncio.ensure_future(_evaluated(gate, 5))
        await until(lambda: gate.awaited_by_evaluation == (5, 0))
        gate.refuse((5, 0), RolloutError("gone"))
        with pytest.raises(RolloutError, match="gone"):
            await refused
    assert gate.awaited_by_evaluation is None
    assert gate.may_go_to(7)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", UseKind)
async def test_a_use_cancelled_at_any_moment_holds_no_weights(kind: UseKind) -> None:
    for turns in range(8):
        gate = VersionGate()
        gate.set_weights(1)

        async def use(gate: VersionGate = gate) -> None:
            async with gate.using(WeightsUse(kind, 2)):
                await asyncio.sleep(0)

        user = asyncio.ensure_future(use())
        await asyncio.sleep(0)
        gate.set_weights(2)
        for _ in range(turns):
            await asyncio.sleep(0)
        user.cancel()
        await asyncio.wait([user])
        assert gate.may_go_to(1), turns
        assert not waiting(gate)
        assert gate.awaited_by_evaluation is None


async def _passed(gate: VersionGate, version: int) -> None:
    async with gate.using(unpinned(version)):
        pass


async def _evaluated(gate: VersionGate, version: int) -> None:
    async with gate.using(WeightsUse(UseKind.EVALUATION, version)):
        pass
