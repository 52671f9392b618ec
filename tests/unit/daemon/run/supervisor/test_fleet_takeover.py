"""Workers that an earlier daemon ordered and that have not joined: sought, and taken over."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from synthetic.worlds.fleet_bench import START_S, FleetBench, Process, Processes

from rftd.ops.words import Words
from rftd.streams.events.worker import WorkerLost, WorkerStarted
from rftd.workers.hosts.executor import Handle, Search, WorkerOrder

pytestmark = pytest.mark.anyio


class Found(Processes):
    """An executor that finds an explorer of an earlier daemon, which has not joined, at once unless told to wait."""

    def __init__(self, explorer: UUID, *, over: bool = True) -> None:
        super().__init__()
        self.explorer = explorer
        self.over = over
        self.waits: Words | None = Words("ray_away", "Ray to answer")
        self.adopted: list[Process] = []

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        return [self] * len(orders)

    def worker(self, order: WorkerOrder) -> UUID | None:
        return self.explorer if order.role == "explorer" else None

    def adopt(self, order: WorkerOrder, started: WorkerStarted | None = None) -> Handle | None:
        if started is not None:
            return None
        self.adopted.append(Process(77, order))
        return self.adopted[-1]


async def test_a_worker_that_has_not_joined_is_taken_over_and_has_its_time_anew() -> None:
    """None is started beside it; one that was declared lost is none to take over."""
    found = Found(UUID(int=5))
    bench = FleetBench(found)
    bench.fleet.seek_opening()
    await bench.after(0.0)
    assert found.of("explorer") == []
    [explorer] = found.adopted
    assert explorer.order.worker == UUID(int=5)
    assert [each.pid for each in bench.fleet.processes() if each.role == "explorer"] == [77]
    await bench.after(START_S / 2)
    bench.join(explorer)
    bench.join(found.of("trainer")[0])
    await bench.after(START_S)
    assert not explorer.killed

    lost = Found(UUID(int=6))
    bench = FleetBench(lost)
    bench.desk.put(WorkerLost(worker=UUID(int=6), role="explorer", slot=0, reason="silent"), key=UUID(int=6))
    bench.fleet.seek_opening()
    await bench.after(0.0)
    assert lost.adopted == []
    assert len(lost.of("explorer")) == 1


async def test_nothing_starts_during_a_search_for_earlier_workers_and_why_is_named() -> None:
    """A fleet that leaves meanwhile takes nobody over."""
    found = Found(UUID(int=5), over=False)
    bench = FleetBench(found)
    bench.fleet.seek_opening()
    for _ in range(5):
        await bench.after(START_S)
    assert found.started == []
    assert {each.waits for each in bench.fleet.processes()} == {found.waits}
    found.over = True
    await bench.after(0.0)
    assert [each.order.role for each in (*found.started, *found.adopted)] == ["trainer", "explorer"]

    found = Found(UUID(int=5), over=False)
    bench = FleetBench(found)
    bench.fleet.seek_opening()
    await bench.fleet.drain()
    found.over = True
    await bench.after(0.0)
    assert (found.started, found.adopted) == ([], []), "what is there was ended with all that was left"
