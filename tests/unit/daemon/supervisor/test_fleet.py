"""Worker processes that hang before they join, or after they left."""

from __future__ import annotations

import platform

import msgspec
import pytest
from desk import Desk

from rftd.daemon.supervisor.fleet import Fleet
from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import WorkError
from rftd.ops.logs import logger
from rftd.streams.events.worker import WorkerStarted, WorkerStopped
from rftd.workers.dispatcher.liveness import Liveness
from rftd.workers.executors.executor import Handle, WorkerOrder

pytestmark = pytest.mark.anyio

START_S = 20.0


class Process:
    """One that runs until it is killed."""

    def __init__(self, pid: int, order: WorkerOrder) -> None:
        self.pid, self.order, self.killed = pid, order, False

    def exit_code(self) -> int | None:
        return -9 if self.killed else None

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


class Processes:
    """An executor whose processes do nothing by themselves."""

    def __init__(self) -> None:
        self.started: list[Process] = []

    async def start(self, order: WorkerOrder) -> Handle:
        self.started.append(Process(1000 + len(self.started), order))
        return self.started[-1]

    def adopt(self, started: WorkerStarted) -> Handle | None:
        return None

    def of(self, role: str) -> list[Process]:
        return [each for each in self.started if each.order.role == role]


class Harbour:
    """A fleet of one trainer and one explorer, on a clock of its own."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.clock, self.processes = ManualClock(), Processes()
        spec = self.desk.state.spine.spec
        assert spec is not None
        self.liveness = Liveness(1e9)
        self.fleet = Fleet(
            self.desk.state,
            msgspec.structs.replace(spec, job_dir="/nowhere"),
            self.processes,
            self.liveness,
            clock=self.clock,
            log=logger(),
            start_timeout_s=START_S,
        )

    def join(self, process: Process) -> WorkerStarted:
        """The process announces itself."""
        order = process.order
        started = WorkerStarted(
            worker=self.desk.tape.ids.new(),
            role=order.role,
            slot=order.slot,
            host=platform.node(),
            pid=process.pid,
            process_start_s=1.0,
        )
        self.desk.put(started, key=started.worker)
        return started

    async def after(self, delay_s: float) -> None:
        """A while later the fleet looks again."""
        self.clock.advance(delay_s)
        await self.fleet.tend()


async def test_a_process_that_does_not_join_is_killed_and_started_anew() -> None:
    harbour = Harbour()
    await harbour.after(0.0)
    [trainer], [explorer] = harbour.processes.of("trainer"), harbour.processes.of("explorer")
    await harbour.after(START_S / 2)
    harbour.join(trainer)
    await harbour.after(START_S / 2)
    assert not explorer.killed, "in time still"
    await harbour.after(1.0)
    assert explorer.killed and not trainer.killed
    for _ in range(3):
        await harbour.after(1.0)
    assert len(harbour.processes.of("explorer")) == 2 and len(harbour.processes.of("trainer")) == 1


async def test_one_that_never_joins_fails_the_experiment_with_the_reason() -> None:
    harbour = Harbour()
    with pytest.raises(WorkError, match=rf"did not join within {START_S:g} s, so it was killed") as raised:
        for _ in range(10 * (limits.RESTARTS_IN_A_ROW + 2)):
            await harbour.after(START_S / 2 + 1.0)
    assert f"ended {limits.RESTARTS_IN_A_ROW + 1} times in a row" in raised.value.what


async def test_one_that_left_and_does_not_end_is_killed() -> None:
    harbour = Harbour()
    await harbour.after(0.0)
    [explorer] = harbour.processes.of("explorer")
    for process in harbour.processes.started:
        harbour.join(process)
    await harbour.after(10 * START_S)
    assert not explorer.killed, "a member may take as long as it likes"
    gone = next(each for each in harbour.desk.state.roster.live.values() if each.role == "explorer")
    harbour.desk.put(WorkerStopped(worker=gone.worker, role="explorer", slot=0, code="X", reason="y"), key=gone.worker)
    await harbour.after(limits.DRAIN_TIMEOUT_S - 1.0)
    assert not explorer.killed
    await harbour.after(2.0)
    assert explorer.killed
